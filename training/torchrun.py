"""``python -m training.torchrun ...``: torchrun that ends with its launcher, and so takes its workers with it."""

from __future__ import annotations

from training.process import die_with_parent


def main() -> None:
    die_with_parent()
    from torch.distributed.run import main as torchrun

    torchrun()


if __name__ == "__main__":
    main()
