"""What the papers report for each way to draft: other models on other machines, so no promise for this one."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Published:
    """A published speedup over plain decoding, with what it was measured on and where it is written."""

    method: str
    speedup: str
    target: str
    hardware: str
    source: str


PUBLISHED = (
    Published("draft model", "2-3x", "T5-XXL 11B", "one TPU v4", "Leviathan et al. 2023, arXiv 2211.17192"),
    Published("draft model", "2-2.5x", "Chinchilla 70B", "16 TPU v4", "Chen et al. 2023, arXiv 2302.01318"),
    Published("staged drafts", "3.16x", "GPT-2-L 762M", "one GPU", "Spector and Re 2023, arXiv 2308.04623"),
    Published("layer skipping", "up to 1.99x", "LLaMA-2 family", "A100", "Zhang et al. 2023, arXiv 2309.08168"),
    Published("n-gram lookup", "about 2.4x", "Mistral 7B, summaries and other copying", "one A100", "Saxena 2023"),
    Published("Medusa-1", "2.2x", "Vicuna 7B and 13B", "one A100", "Cai et al. 2024, arXiv 2401.10774"),
    Published("Medusa-2", "2.3-3.6x", "Vicuna and Zephyr", "one A100", "Cai et al. 2024, arXiv 2401.10774"),
    Published("EAGLE", "2.7-3.5x", "LLaMA2-Chat 70B", "four A100", "Li et al. 2024, arXiv 2401.15077"),
    Published("EAGLE-2", "3.05-4.26x", "Vicuna and LLaMA chat models", "A100", "Li et al. 2024, arXiv 2406.16858"),
    Published(
        "EAGLE-3", "up to 6.5x", "Vicuna and LLaMA chat models", "H100 and RTX 3090", "Li et al. 2025, arXiv 2503.01840"
    ),
)


def as_rows() -> list[dict[str, str]]:
    """Return the table as plain data."""
    return [asdict(one) for one in PUBLISHED]
