"""Every hand-made scene, with the symptom and cause that are to be told of it."""

from __future__ import annotations

from tests.unit.diagnosis.causes import EXPECTED
from tests.unit.diagnosis.causes_behind import BEHIND
from tests.unit.diagnosis.causes_fed import FED
from tests.unit.diagnosis.causes_gpu import GPU_SIDE
from tests.unit.diagnosis.causes_handmade import HANDMADE
from tests.unit.diagnosis.causes_serving import SERVED
from tests.unit.diagnosis.causes_wire import ON_WIRE

ALL = EXPECTED | GPU_SIDE | BEHIND | FED | HANDMADE | ON_WIRE | SERVED
