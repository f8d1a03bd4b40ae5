"""The engine's own rate, for `server_load`: a list of texts on standard input, all in one call, the median of three.

python -m benchmarks.server_engine BUNDLE PRECISION < texts.json
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from polyhead.engine.session import Session


def main() -> None:
    bundle, precision = sys.argv[1:]
    texts = json.load(sys.stdin)
    session = Session(bundle, backend="openvino", precision=precision)
    names = [name for name, task in session.tasks.items() if task.pair == "none"]
    session.predict(texts[:256], tasks=names)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        results = session.predict(texts, tasks=names)
        seconds.append(time.perf_counter() - began)
        assert len(results) == len(texts)
    print(json.dumps({"texts": len(texts), "a_second": len(texts) / statistics.median(seconds), "tasks": len(names)}))


if __name__ == "__main__":
    main()
