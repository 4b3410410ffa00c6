"""`gpt ARGUMENTS...` as the tests start it: `precision: auto` means what the tests say."""

import os
import sys

AUTO_PRECISION = "GPT_TESTS_AUTO_PRECISION"  # bf16, fp32, or nothing: what this CPU does best


def set_auto_precision() -> None:
    """Let torch say that the CPU multiplies bfloat16, or does not: it computes it all the same."""
    if precision := os.environ.get(AUTO_PRECISION):
        import torch

        able = torch.cpu.get_capabilities() | dict.fromkeys(
            ("avx512_bf16", "amx_bf16"), precision == "bf16"
        )
        torch.cpu.get_capabilities = lambda: able


if __name__ == "__main__":
    import gpt.__main__
    from gpt.__main__ import main

    sys.argv[0] = gpt.__main__.__file__  # as `python -m gpt`, so that messages name options
    set_auto_precision()
    main()
