import sys,time,torch,numpy as np
sys.path.insert(0,'tests/deep')
import test_parts_trained_as_one as t
torch.set_num_threads(1)
t.WIDTH=384
from polyhead.deep.heads.stack import *
from polyhead.deep.loop.fit import Course
TR=Training()
pool={**t.ATTENTION,'heads':6}
path=Path=t.Path(nodes=(t.Embed(trunk="x"),*t.shared_layers(2),t.Pool(**pool),t.Head(kind="single_label",width=4,part="task:a",hidden=384)))
class D(t.Drawn):
    def __init__(s,path,count,seed):
        super().__init__(path,count,seed)
        d=np.random.default_rng(seed); s.lengths=d.integers(8,40,count); s._values=[d.standard_normal((n,1,384)).astype(np.float32) for n in s.lengths]
        s._labels=[np.argmax(r.sum(axis=1)[:,:4],axis=1) for r in s._values]
ex=[D(path,640,s) for s in range(5)]
for e in ex:
    got=[e.batch(m) for m in e.drawn(32,np.random.default_rng(0))]
    # cached batches: reading is not measured
def part(seed): return t.PooledPart(path,384,dropouts=TR.dropouts,generator=torch.Generator().manual_seed(seed))
sch=TR.schedule(20)
loss=t.LOSSES["cross_entropy"]
old=[Course(part(s),e,loss=loss,score=lambda:None,training=TR,last=True) for s,e in enumerate(ex)]
ones=[StackedCourse([part(s)],[TaskSchedule(e,TR,steps=sch.updates)],loss=loss,training=TR,schedule=sch) for s,e in enumerate(ex)]
two=[StackedCourse([part(s) for s in g],[TaskSchedule(ex[s],TR,steps=sch.updates) for s in g],loss=loss,training=TR,schedule=sch) for g in ((0,1),(2,3),(4,))]
five=[StackedCourse([part(s) for s in range(5)],[TaskSchedule(e,TR,steps=sch.updates) for e in ex],loss=loss,training=TR,schedule=sch)]
T={}
import itertools
for r in range(1,6):
    for name,cs in (('old',old),('ones',ones),('two',two),('five',five)):
        a=time.process_time(); 
        with t.own_generator():
            for c in cs: c.advance(r)
        T.setdefault(name,[]).append(time.process_time()-a)
print(sch, {k:[round(x,2) for x in v] for k,v in T.items()})
print({k:round(sum(v)/sum(T['old']),3) for k,v in T.items()})
if len(sys.argv)>1:
    from torch.profiler import profile
    for name,cs in (('old',old),('five',five)):
        with t.own_generator(), profile() as pr:
            for c in cs: c.advance(r+1)
        print(name); print(pr.key_averages().table(sort_by="self_cpu_time_total",row_limit=22,max_name_column_width=40))
