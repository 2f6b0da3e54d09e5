"""A child of test_allocator: builds and trains a network on the reference device, and tells every allocation."""

import json
import os
import sys
import tempfile

from memviz.child.machine import child_environment
from memviz.measurement import trace

BATCH, STEPS = 8, 4


def main(network, limit, growth):
    os.environ.update(child_environment("reference", limit, growth))
    import keras
    import networks

    from memviz.measurement.device import open_device
    from memviz.measurement.digits import Batches
    from memviz.models.network import Network
    from memviz.models.training import batch_specs, build_slots, compiled_model, step_function
    from memviz.setup import TrainingSetup

    device = open_device("reference", limit, growth)
    with tempfile.TemporaryDirectory() as folder:
        trace.start_trace(folder)
        model = compiled_model(Network.of(networks.ALL[network]), TrainingSetup(batch_size=BATCH, jit_compile=False))
        build_slots(model)
        step = step_function(model)
        batches = Batches(*batch_specs(model, BATCH), [output.shape[-1] for output in model.outputs])
        for index in range(STEPS):
            step(keras.tree.map_structure(device.place, batches.batch(index)))
        events, _ = trace.stop_trace(folder, "bfc_cpu_allocator_for_gpu")
    rows = [(e.allocates, e.address, e.requested_bytes, e.charged_bytes) for e in events]
    print(json.dumps({"guard": device.overhead_bytes, "events": rows}))


main(**json.loads(sys.argv[1]))
