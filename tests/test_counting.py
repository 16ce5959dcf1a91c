"""Published models, counted on the meta device, against the counts that were published."""

import pytest
import torch

from tx.apps.counting import PUBLISHED, by_part, cache_bytes_per_token, count, published

# Sizes of the released checkpoints, tied matrices once.
TOTALS = {
    "gpt-2": 124_439_808, "gpt-2-medium": 354_823_168, "gpt-2-large": 774_030_080, "gpt-2-xl": 1_557_611_200,
    "gpt-3-175b": 174_604_259_328, "t5-small": 60_506_624, "t5-base": 222_903_552, "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336, "t5-11b": 11_307_321_344, "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320, "llama-33b": 32_528_943_616, "llama-65b": 65_285_660_672,
    "llama-2-70b": 68_976_648_192, "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800, "llama-3.2-1b": 1_235_814_400, "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704, "gemma-2b": 2_506_172_416, "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888, "gemma-2-9b": 9_241_705_984, "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304, "qwen2-7b": 7_615_616_512, "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360, "qwen3-30b-a3b": 30_532_122_624,
    "smollm2-135m": 134_515_008,
}  # fmt: skip


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name == "qwen3-30b-a3b")) for name in TOTALS  # 128 experts
])
def test_totals(name):
    model = published(name)
    assert count(model) == TOTALS[name]
    assert all(parameter.is_meta for parameter in model.parameters())
    assert sum(by_part(model).values()) == count(model)


@pytest.mark.parametrize("name,total", [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_bert_without_its_head_for_masked_tokens(name, total):
    model = published(name)
    model.masked_head = None
    assert count(model) == total


def test_cache_bytes():
    KiB = 1024
    assert cache_bytes_per_token(published("llama-2-7b").config) == 512 * KiB
    assert cache_bytes_per_token(published("llama-3-8b").config) == 128 * KiB
    assert cache_bytes_per_token(published("llama-3-70b").config) == 320 * KiB
    assert cache_bytes_per_token(published("llama-3-8b").config, torch.float32) == 256 * KiB


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="llama-3-7b.*llama-3-8b"):
        published("llama-3-7b")
    assert len(PUBLISHED) > 30
