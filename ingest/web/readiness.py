"""Whether a process is ready: what it knows of itself, before anyone asks."""

from dataclasses import dataclass, field


@dataclass
class Readiness:
    """Starts not ready; `blocked`: what has no answer from the log or a database, and the words of the failure.
    `lost`: what is missing for good, in words; that leaves a process ready, as a restart would not bring it back."""

    started: bool = False
    blocked: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def set(self, part: str, problem: str | None) -> None:
        if problem is None:
            self.blocked.pop(part, None)
        else:
            self.blocked[part] = problem

    @property
    def ready(self) -> bool:
        return self.started and not self.blocked
