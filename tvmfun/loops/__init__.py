"""Progress bars, logs, early stopping and evaluation for training loops, which the user writes.

>>> import tempfile
>>> from pathlib import Path
>>> stopping = EarlyStopping(patience=2)
>>> with tempfile.TemporaryDirectory() as folder, CSVLogger(f"{folder}/log.csv") as log:
...     for epoch, loss in enumerate(progress([0.9, 0.5, 0.6, 0.7, 0.1], disable=True)):
...         log.write({"epoch": epoch, "loss": loss})
...         stopping = stopping.update(loss)
...         if stopping.should_stop:
...             break
...     print(Path(folder, "log.csv").read_text())
epoch,loss
0,0.9
1,0.5
2,0.6
3,0.7
"""

# ruff: noqa: F403

from tvmfun.loops import early_stopping, evaluation, logs, progress_bar, tensorboard
from tvmfun.loops.early_stopping import *
from tvmfun.loops.evaluation import *
from tvmfun.loops.logs import *
from tvmfun.loops.progress_bar import *
from tvmfun.loops.tensorboard import *
from tvmfun.names import missing as _missing

__all__ = []
__all__ += early_stopping.__all__
__all__ += evaluation.__all__
__all__ += logs.__all__
__all__ += progress_bar.__all__
__all__ += tensorboard.__all__

__getattr__ = _missing(__name__)
