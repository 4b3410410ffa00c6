"""The specification of a sweep: one trial for each combination of the varied settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, field_serializer

from gpt.config.removed import cannot_resume, upgraded
from gpt.config.schema import Config, explicit
from gpt.config.schema import values as all_values
from gpt.errors import UsageError
from gpt.files import read_bounded, write_atomically
from gpt.runs.folder import MAX_SWEEP_BYTES, SWEEP


def _upgraded(tree: Any) -> Any:
    if reason := cannot_resume(tree):
        raise UsageError(f"the sweep cannot be resumed: {reason}")
    return upgraded(tree)


StoredConfig = Annotated[Config, BeforeValidator(_upgraded)]


class Trial(BaseModel):
    """A run of a sweep, as stored in sweep.json."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)  # older files have further keys
    name: str  # name of the run's folder
    values: dict[str, str]  # value, as typed, of each setting that the sweep varies
    asked: StoredConfig  # the config that the user gave; settings can be unset
    is_open: bool = False  # whether gpt chooses the unset settings for the text and the time
    config: StoredConfig = Config()  # to train with, including what gpt has chosen
    text_sha256: str = ""  # hash of the text, to notice that it has changed

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by dotted key, without those that gpt chooses. They identify a trial."""
        return explicit(self.asked) if self.is_open else all_values(self.asked)

    @field_serializer("asked", "config")
    def _only_given(self, config: Config) -> dict[str, Any]:
        return config.model_dump(exclude_unset=True)


class SweepSpec(BaseModel):
    """All trials of a sweep: the content of sweep.json."""

    runs: list[Trial]


def write_spec(folder: Path, spec: SweepSpec) -> None:
    """Write the sweep.json of a new sweep."""
    write_atomically(folder / SWEEP, [spec.model_dump_json(indent=1).encode()])


def read_spec(folder: Path) -> SweepSpec:
    """Read the sweep.json in `folder`; raise UsageError if it does not specify a sweep."""
    path = folder / SWEEP
    try:
        return SweepSpec.model_validate_json(read_bounded(path, MAX_SWEEP_BYTES))
    except (OSError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UsageError(
            f"{path}: expected the specification of a sweep, but the file is not valid ({reason}); "
            f"restore the file, or choose another --run-dir"
        ) from None


def check_different(trials: Sequence[Trial]) -> None:
    """Raise UsageError if two trials have the same settings."""
    names: dict[str, str] = {}
    for trial in trials:
        first = names.setdefault(repr(sorted(trial.settings.items())), trial.name)
        if first != trial.name:
            raise UsageError(
                f"expected runs that differ, got {first} and {trial.name} with the same settings; "
                f"leave one out (--minutes and --init-from replace train.minutes and "
                f"train.init_from, and null means the default)"
            )


def check_same(folder: Path, spec: SweepSpec, asked: Sequence[Trial]) -> None:
    """Raise UsageError if `asked` are not the trials of `spec`."""
    before, now = ({each.name: each.settings for each in trials} for trials in (spec.runs, asked))
    if before != now:
        raise UsageError(
            f"{folder} is another sweep: its runs have other names or settings; resume that one by "
            f"--resume {folder}, or choose another --run-dir"
        )
