"""A child of test_estimate: trains a network on the reference device, evaluates and predicts, and tells the peak of the
training steps, and by how much the requested bytes rise while it evaluates and predicts: how they fall into the free
chunks that training has left differs from process to process.
"""

import itertools
import json
import os
import sys
import tempfile

from memviz.child.machine import child_environment
from memviz.measurement import trace


def main(network, limit, batch, inference_batch):
    os.environ.update(child_environment("reference", limit, False))
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
    step, batches = step_function(model), Batches(*batch_specs(model, batch), classes)
    for index in range(4):
        device.reset_peak()
        step(keras.tree.map_structure(device.place, batches.batch(index)))
    told = {"steady_step": device.memory()[1]}
    features, labels = Batches(*batch_specs(model, inference_batch), classes).batch(0)
    for phase, kind, given in (("evaluate", "test", (features, labels)), ("predict", "predict", (features,))):
        with tempfile.TemporaryDirectory() as folder:
            trace.start_trace(folder)
            step_function(model, kind)(keras.tree.map_structure(device.place, given))
            events, _ = trace.stop_trace(folder, "bfc_cpu_allocator_for_gpu")
        changes = [e.requested_bytes if e.allocates else -e.requested_bytes for e in events]
        told[phase] = max(itertools.accumulate(changes))
    print(json.dumps(told))


main(**json.loads(sys.argv[1]))
