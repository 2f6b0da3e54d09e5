"""A child of test_estimate: trains a network on the reference device, evaluates and predicts, and tells the peaks."""

import json
import os
import sys

from memviz.measurement.trial import environment


def main(network, limit, batch, inference_batch):
    os.environ.update(environment("reference", limit, False))
    import keras
    import networks

    from memviz.measurement.device import open_device
    from memviz.measurement.digits import Batches
    from memviz.models.network import Network
    from memviz.models.training import batch_specs, build_slots, compiled_model, step_function
    from memviz.setup import TrainingSetup

    device = open_device("reference", limit, False)
    model = compiled_model(Network.of(networks.ALL[network]), TrainingSetup(batch_size=batch, jit_compile=False))
    build_slots(model)
    classes = [output.shape[-1] for output in model.outputs]
    peaks = {}
    kinds = (("steady_step", "train", batch, 4), ("evaluate", "test", inference_batch, 1))
    for phase, kind, size, steps in (*kinds, ("predict", "predict", inference_batch, 1)):
        step, batches = step_function(model, kind), Batches(*batch_specs(model, size), classes)
        for index in range(steps):
            device.reset_peak()
            features, labels = batches.batch(index)
            given = keras.tree.map_structure(device.place, (features,) if kind == "predict" else (features, labels))
            result = step(given)
            peaks[phase] = device.memory()[1]
            del given, result
    print(json.dumps(peaks))


main(**json.loads(sys.argv[1]))
