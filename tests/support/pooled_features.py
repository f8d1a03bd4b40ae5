"""What tasks' heads read, (rows, width) or (rows, words, width), on backends whose poolers can be asked alone."""


def of_reference(backend, plan, batch):
    features = {}
    for _, pooled, failed in backend._pooled_in_order(plan, batch):
        for error in failed.values():
            raise error
        features |= pooled
    return features


def of_torch(backend, plan, batch):
    import torch

    loaded = backend._loaded
    with backend._counted(loaded):
        stored = loaded.model.stored(plan, backend._texts(batch))
    with torch.inference_mode(), backend._guard():
        return {
            task: loaded.model.parts[task].features(value.values, value.mask).cpu().numpy()
            for task, value in stored.items()
        }
