"""Real input for the network of the founding question: recordings of birds, or of none, made up and read as hers were.

Short wav files at 16 kHz are written to a temporary folder and read through TensorFlow's own pipeline.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.io import wavfile
from scipy.signal import chirp

if TYPE_CHECKING:
    import tensorflow as tf

RATE, SAMPLES = 16_000, 48_000  # per second; per recording, shorter ones are padded
FRAME, STEP = 320, 32  # samples of a short-time Fourier transform: 1,491 frames of 257 frequencies


def bird_audio(batch_size: int = 1, recordings: int = 48) -> tf.data.Dataset:
    """Batches of (spectrograms (batch, 1491, 257, 1) float32, labels (batch, 1) float32: 1 for a bird, else 0).

    recordings: how many are made, half of them with chirps; the others are noise. The files last as long as this
    process. The pipeline is decode, pad, short-time Fourier transform, magnitude, cache, shuffle, batch, prefetch.
    """
    import tensorflow as tf

    folder = tempfile.mkdtemp(prefix="memviz-birds-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    paths, labels = write_recordings(Path(folder), recordings)

    def spectrogram(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        sound, _ = tf.audio.decode_wav(tf.io.read_file(path), desired_channels=1)
        sound = tf.pad(sound[:SAMPLES, 0], [[0, SAMPLES - tf.minimum(tf.shape(sound)[0], SAMPLES)]])
        magnitude = tf.abs(tf.signal.stft(tf.ensure_shape(sound, [SAMPLES]), frame_length=FRAME, frame_step=STEP))
        return magnitude[..., tf.newaxis], label

    dataset = tf.data.Dataset.from_tensor_slices((paths, np.array(labels, np.float32)[:, None]))
    dataset = dataset.map(spectrogram, num_parallel_calls=tf.data.AUTOTUNE).cache().shuffle(1000, seed=0)
    return dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def write_recordings(folder: Path, count: int) -> tuple[list[str], list[int]]:
    """Wav files of 2 to 3 seconds, 16 bits, one channel, from a fixed seed: their paths, and 1 where a bird sings."""
    random = np.random.default_rng(0)
    paths, labels = [], [number % 2 for number in range(count)]
    for number, label in enumerate(labels):
        sound = 0.05 * random.standard_normal(int(random.integers(2 * RATE, 3 * RATE)))
        for _ in range(4 * label):
            call = _call(random)
            start = random.integers(0, len(sound) - len(call))
            sound[start : start + len(call)] += call
        path = folder / f"{number:03}.wav"
        wavfile.write(path, RATE, (np.clip(sound, -1, 1) * 32767).astype(np.int16))
        paths.append(str(path))
    return paths, labels


def _call(random: np.random.Generator) -> np.ndarray:
    """A tone of 0.1 to 0.3 seconds that glides between 2 and 7 kHz."""
    time = np.arange(int(RATE * random.uniform(0.1, 0.3))) / RATE
    low, high = random.uniform(2000, 7000, size=2)
    return 0.5 * np.hanning(len(time)) * chirp(time, low, time[-1], high)
