#!/usr/bin/env python3
"""Writes a random checkpoint in the published layout of Kimi-Linear.

    tools/make_checkpoint.py --out DIR --preset 400mb
    tools/make_checkpoint.py --out DIR --preset tiny --seed 7 --mtp --shards 3

The directory then holds config.json, model.safetensors (or shards and an index), tiktoken.model
and tokenizer_config.json: everything that a load reads. The weights mean nothing, but they are
scaled so that activations and logits have the size that trained ones have. Equal arguments give
equal files (on another machine but for last bits of decay rates, which pass through its log and
exp). Needs Python 3.9 and nothing beyond its standard library.

Matrices are tiled from one block of noise per scale, at offsets drawn per tensor: drawing every
element by itself would take minutes for 400 MB. The block is longer than any row.
"""

import argparse
import array
import base64
import hashlib
import json
import math
import pathlib
import random
import shutil
import struct
import sys
from dataclasses import dataclass, fields

NUM_BYTE_TOKENS = 256
SPECIAL_TOKENS = ["[BOS]", "[EOS]", "[PAD]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>",
                  "<|im_system|>", "<|im_middle|>"]
BLOCK_ELEMENTS = 1 << 18
GAIN = 1.6  # std of a matrix is GAIN / sqrt(columns): logits spread, and the best stands out


@dataclass
class Shape:
    """The sizes of a model; every field is an option of the command line."""
    hidden: int
    layers: int
    heads: int                # of KDA and of MLA layers
    head_dim: int             # of KDA
    mla_every: int            # layers mla_every, 2*mla_every, ... are MLA; 0: none, 1: all
    kv_rank: int
    qk_nope: int
    qk_rope: int
    v_dim: int
    intermediate: int
    experts: int              # 0: all layers are dense
    experts_per_token: int
    shared_experts: int
    expert_intermediate: int
    dense_layers: int         # leading layers without experts
    vocab: int
    max_length: int


PRESETS = {
    "tiny": Shape(hidden=64, layers=4, heads=2, head_dim=32, mla_every=4, kv_rank=32, qk_nope=16,
                  qk_rope=16, v_dim=16, intermediate=128, experts=4, experts_per_token=2,
                  shared_experts=1, expert_intermediate=32, dense_layers=1, vocab=272,
                  max_length=4096),
    "40mb": Shape(hidden=512, layers=8, heads=4, head_dim=128, mla_every=4, kv_rank=128,
                  qk_nope=64, qk_rope=32, v_dim=64, intermediate=768, experts=0,
                  experts_per_token=0, shared_experts=0, expert_intermediate=0, dense_layers=8,
                  vocab=1024, max_length=32768),
    # Dense, so that nearly every byte is read for every token.
    "400mb": Shape(hidden=1024, layers=16, heads=8, head_dim=128, mla_every=4, kv_rank=256,
                   qk_nope=128, qk_rope=64, v_dim=128, intermediate=2432, experts=0,
                   experts_per_token=0, shared_experts=0, expert_intermediate=0, dense_layers=16,
                   vocab=4096, max_length=32768),
}


@dataclass
class Model:
    """What to write: sizes and forms."""
    shape: Shape
    full_rank_gate: bool
    gate_lower_bound: "float | None"
    mtp: bool
    bos: int

    def is_mla(self, layer):
        return self.shape.mla_every > 0 and (layer + 1) % self.shape.mla_every == 0

    def is_moe(self, layer):
        return self.shape.experts > 0 and layer >= self.shape.dense_layers


@dataclass
class Tensor:
    name: str
    dtype: str                # BF16 or F32
    shape: tuple
    kind: str                 # how its values are drawn; see Values

    @property
    def elements(self):
        return math.prod(self.shape)

    @property
    def bytes(self):
        return self.elements * (2 if self.dtype == "BF16" else 4)


# -- what a checkpoint consists of ------------------------------------------------------------


def matrix(name, rows, columns):
    return Tensor(name + ".weight", "BF16", (rows, columns), "matrix")


def norm(name, width):
    return Tensor(name + ".weight", "BF16", (width,), "norm")


def kda_tensors(prefix, model):
    s = model.shape
    width = s.heads * s.head_dim
    for part in "qkv":
        yield matrix(f"{prefix}{part}_proj", width, s.hidden)
        yield Tensor(f"{prefix}{part}_conv1d.weight", "BF16", (width, 1, 4), "filter")
    # Kimi K3, with its full-rank gate, has a flat list of rates; Kimi-Linear has four dimensions.
    rates = (s.heads,) if model.full_rank_gate else (1, 1, s.heads, 1)
    yield Tensor(prefix + "A_log", "F32", rates, "decay_rate")
    yield Tensor(prefix + "dt_bias", "F32", (width,), "decay_bias")
    yield matrix(prefix + "f_a_proj", s.head_dim, s.hidden)
    yield matrix(prefix + "f_b_proj", width, s.head_dim)
    yield matrix(prefix + "b_proj", s.heads, s.hidden)
    if model.full_rank_gate:
        yield matrix(prefix + "g_proj", width, s.hidden)
    else:
        yield matrix(prefix + "g_a_proj", s.head_dim, s.hidden)
        yield matrix(prefix + "g_b_proj", width, s.head_dim)
    yield norm(prefix + "o_norm", s.head_dim)
    yield matrix(prefix + "o_proj", s.hidden, width)


def mla_tensors(prefix, s):
    yield matrix(prefix + "q_proj", s.heads * (s.qk_nope + s.qk_rope), s.hidden)
    yield matrix(prefix + "kv_a_proj_with_mqa", s.kv_rank + s.qk_rope, s.hidden)
    yield norm(prefix + "kv_a_layernorm", s.kv_rank)
    yield matrix(prefix + "kv_b_proj", s.heads * (s.qk_nope + s.v_dim), s.kv_rank)
    yield matrix(prefix + "o_proj", s.hidden, s.heads * s.v_dim)


def dense_tensors(prefix, hidden, width):
    yield matrix(prefix + "gate_proj", width, hidden)
    yield matrix(prefix + "up_proj", width, hidden)
    yield matrix(prefix + "down_proj", hidden, width)


def moe_tensors(prefix, s):
    yield matrix(prefix + "gate", s.experts, s.hidden)
    yield Tensor(prefix + "gate.e_score_correction_bias", "F32", (s.experts,), "selection_bias")
    for expert in range(s.experts):
        yield matrix(f"{prefix}experts.{expert}.w1", s.expert_intermediate, s.hidden)
        yield matrix(f"{prefix}experts.{expert}.w3", s.expert_intermediate, s.hidden)
        yield matrix(f"{prefix}experts.{expert}.w2", s.hidden, s.expert_intermediate)
    if s.shared_experts > 0:
        yield from dense_tensors(prefix + "shared_experts.", s.hidden,
                                 s.expert_intermediate * s.shared_experts)


def layer_tensors(layer, model, mla):
    s = model.shape
    prefix = f"model.layers.{layer}."
    yield norm(prefix + "input_layernorm", s.hidden)
    yield norm(prefix + "post_attention_layernorm", s.hidden)
    if mla:
        yield from mla_tensors(prefix + "self_attn.", s)
    else:
        yield from kda_tensors(prefix + "self_attn.", model)
    if model.is_moe(layer):
        yield from moe_tensors(prefix + "block_sparse_moe.", s)
    else:
        yield from dense_tensors(prefix + "mlp.", s.hidden, s.intermediate)


def checkpoint_tensors(model):
    s = model.shape
    yield Tensor("model.embed_tokens.weight", "BF16", (s.vocab, s.hidden), "embedding")
    for layer in range(s.layers):
        yield from layer_tensors(layer, model, model.is_mla(layer))
    if model.mtp:
        prefix = f"model.layers.{s.layers}."
        yield from layer_tensors(s.layers, model, mla=True)
        yield norm(prefix + "enorm", s.hidden)
        yield norm(prefix + "hnorm", s.hidden)
        yield matrix(prefix + "eh_proj", s.hidden, 2 * s.hidden)
        yield norm(prefix + "shared_head.norm", s.hidden)
    yield norm("model.norm", s.hidden)
    yield matrix("lm_head", s.vocab, s.hidden)


def active_bytes(tensors, model):
    """Bytes of weights that one token reads, without the prediction block."""
    s = model.shape
    total = 0
    for tensor in tensors:
        if tensor.name.startswith(f"model.layers.{s.layers}."):
            continue
        if tensor.kind == "embedding":
            total += tensor.bytes // s.vocab
        elif ".experts." in tensor.name:
            total += tensor.bytes * s.experts_per_token // s.experts
        else:
            total += tensor.bytes
    return total


# -- values -----------------------------------------------------------------------------------


def to_bf16(values):
    """The bytes of the numbers in bfloat16, rounded to nearest even. None of them is a NaN."""
    words = array.array("I", array.array("f", values).tobytes())
    halves = array.array("H", [(w + 0x7FFF + ((w >> 16) & 1)) >> 16 for w in words])
    return little_endian(halves)


def little_endian(numbers):
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


class Values:
    """Draws the bytes of tensors. A tensor's values depend on the seed and on its name only."""

    def __init__(self, seed):
        self.seed = seed
        self.blocks = {}
        draw = random.Random(seed).random
        # Twelve uniforms less 6: nearly normal, and sums are exact everywhere, unlike libm.
        self.noise = [draw() + draw() + draw() + draw() + draw() + draw() + draw() + draw()
                      + draw() + draw() + draw() + draw() - 6.0 for _ in range(BLOCK_ELEMENTS)]

    def block(self, std):
        """The noise at this scale, twice over, so that a piece may begin anywhere in it."""
        if std not in self.blocks:
            self.blocks[std] = memoryview(2 * to_bf16([std * x for x in self.noise]))
        return self.blocks[std]

    def pieces(self, tensor):
        """The tensor's bytes, in pieces."""
        name_digest = hashlib.sha256(f"{self.seed}:{tensor.name}".encode()).digest()
        rng = random.Random(int.from_bytes(name_digest[:8], "little"))
        if tensor.kind in ("matrix", "embedding"):
            columns = tensor.shape[-1]
            std = 1.0 if tensor.kind == "embedding" else GAIN / math.sqrt(columns)
            block = self.block(std)
            left = tensor.elements
            while left > 0:
                count = min(left, BLOCK_ELEMENTS)
                begin = rng.randrange(BLOCK_ELEMENTS)
                yield block[2 * begin:2 * (begin + count)]
                left -= count
            return
        values = [self.value(tensor.kind, rng) for _ in range(tensor.elements)]
        yield to_bf16(values) if tensor.dtype == "BF16" else little_endian(
            array.array("f", values))

    def value(self, kind, rng):
        if kind == "decay_rate":  # of the state, as a logarithm
            return math.log(rng.uniform(1.0, 16.0))
        if kind == "decay_bias":  # the inverse of softplus at a time step from 0.001 to 0.1
            step = math.exp(rng.uniform(math.log(1e-3), math.log(0.1)))
            return step + math.log(-math.expm1(-step))
        noise = self.noise[rng.randrange(BLOCK_ELEMENTS)]
        return {"norm": 1.0 + 0.1 * noise, "filter": 0.5 * noise,
                "selection_bias": 0.1 * noise}[kind]


# -- files ------------------------------------------------------------------------------------


def write_safetensors(path, tensors, values):
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape),
                               "data_offsets": [offset, offset + tensor.bytes]}
        offset += tensor.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        for tensor in tensors:
            for piece in values.pieces(tensor):
                out.write(piece)


def split(tensors, num_shards):
    """Runs of about equal bytes; none is empty."""
    total = sum(tensor.bytes for tensor in tensors)
    shards = [[] for _ in range(num_shards)]
    done = 0
    for i, tensor in enumerate(tensors):
        wanted = min(done * num_shards // total, num_shards - 1)
        # At least as many tensors must be left as shards after this one.
        earliest = num_shards - (len(tensors) - i)
        shards[max(wanted, earliest)].append(tensor)
        done += tensor.bytes
    return [shard for shard in shards if shard]


def write_weights(directory, tensors, values, num_shards):
    if num_shards == 1:
        write_safetensors(directory / "model.safetensors", tensors, values)
        return
    shards = split(tensors, num_shards)
    weight_map = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write_safetensors(directory / name, shard, values)
        weight_map.update({tensor.name: name for tensor in shard})
    index = {"metadata": {"total_size": sum(tensor.bytes for tensor in tensors)},
             "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def config(model):
    s = model.shape
    layers = range(s.layers)
    linear = {"kda_layers": [i + 1 for i in layers if not model.is_mla(i)],
              "full_attn_layers": [i + 1 for i in layers if model.is_mla(i)],
              "head_dim": s.head_dim, "num_heads": s.heads, "short_conv_kernel_size": 4}
    if model.full_rank_gate:
        linear["use_full_rank_gate"] = True
    if model.gate_lower_bound is not None:
        linear["gate_lower_bound"] = model.gate_lower_bound
    return {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
        "vocab_size": s.vocab, "hidden_size": s.hidden, "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads, "num_key_value_heads": s.heads,
        "intermediate_size": s.intermediate, "hidden_act": "silu", "rms_norm_eps": 1e-05,
        "kv_lora_rank": s.kv_rank, "q_lora_rank": None, "qk_nope_head_dim": s.qk_nope,
        "qk_rope_head_dim": s.qk_rope, "v_head_dim": s.v_dim, "mla_use_nope": True,
        "rope_scaling": None, "first_k_dense_replace": s.dense_layers, "moe_layer_freq": 1,
        "num_experts": s.experts, "num_experts_per_token": s.experts_per_token,
        "num_shared_experts": s.shared_experts, "moe_intermediate_size": s.expert_intermediate,
        "moe_router_activation_func": "sigmoid", "moe_renormalize": True,
        "routed_scaling_factor": 1.5, "use_grouped_topk": True, "num_expert_group": 1,
        "topk_group": 1, "linear_attn_config": linear,
        "num_nextn_predict_layers": 1 if model.mtp else 0, "tie_word_embeddings": False,
        "model_max_length": s.max_length, "bos_token_id": model.bos,
        "eos_token_id": model.bos + 1, "pad_token_id": model.bos + 2, "torch_dtype": "bfloat16",
    }


def write_byte_tokenizer(directory):
    lines = [f"{base64.b64encode(bytes([b])).decode()} {b}\n" for b in range(NUM_BYTE_TOKENS)]
    (directory / "tiktoken.model").write_text("".join(lines))
    names = {str(NUM_BYTE_TOKENS + i): {"content": name, "special": True}
             for i, name in enumerate(SPECIAL_TOKENS)}
    (directory / "tokenizer_config.json").write_text(json.dumps(
        {"added_tokens_decoder": names, "bos_token": "[BOS]", "eos_token": "[EOS]",
         "pad_token": "[PAD]", "tokenizer_class": "TikTokenTokenizer"}, indent=2) + "\n")


# -- command line -----------------------------------------------------------------------------


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True,
                        help="directory to write; new or empty")
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, default=1, help="files to spread the weights over")
    parser.add_argument("--mtp", action="store_true", help="add a multi-token-prediction block")
    parser.add_argument("--full-rank-gate", action="store_true", help="one matrix as output gate")
    parser.add_argument("--gate-lower-bound", type=float, metavar="X",
                        help="bound of the decay gate, less than 0; default: softplus gate")
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="DIR",
                        help="copy the tokenizer of this model; default: one token a byte")
    for field in fields(Shape):
        parser.add_argument("--" + field.name.replace("_", "-"), type=int, metavar="N",
                            help="overrides the preset")
    return parser.parse_args()


def make_model(args):
    """The model the arguments ask for; ends the program where they contradict each other."""
    chosen = vars(PRESETS[args.preset]).copy()
    for name in chosen:
        if getattr(args, name) is not None:
            chosen[name] = getattr(args, name)
    s = Shape(**chosen)
    if args.layers is not None and args.dense_layers is None and s.experts == 0:
        s.dense_layers = s.layers
    if s.experts == 0:
        s.experts_per_token = s.shared_experts = s.expert_intermediate = 0
    bos, needed = NUM_BYTE_TOKENS, NUM_BYTE_TOKENS + len(SPECIAL_TOKENS)
    if args.tokenizer is not None:
        bos = sum(1 for line in open(args.tokenizer / "tiktoken.model") if line.strip())
        needed = bos + len(SPECIAL_TOKENS)
    can_be_zero = {"mla_every", "experts", "shared_experts", "dense_layers"}
    if s.experts == 0:
        can_be_zero |= {"experts_per_token", "expert_intermediate"}
    for name, value in vars(s).items():
        if value < 0 or (value == 0 and name not in can_be_zero):
            sys.exit(f"--{name.replace('_', '-')} is {value}; must be at least 1")
    if s.head_dim % 32 != 0:
        sys.exit(f"--head-dim is {s.head_dim}; must be a multiple of 32")
    if s.experts_per_token > s.experts:
        sys.exit(f"--experts-per-token is {s.experts_per_token}; there are {s.experts} experts")
    if s.vocab < needed:
        sys.exit(f"--vocab is {s.vocab}; the tokenizer needs {needed}")
    if args.gate_lower_bound is not None and not args.gate_lower_bound < 0:
        sys.exit(f"--gate-lower-bound is {args.gate_lower_bound}; must be less than 0")
    if max(s.hidden * 2, s.intermediate, s.heads * s.head_dim) > BLOCK_ELEMENTS:
        sys.exit(f"rows of more than {BLOCK_ELEMENTS} elements would repeat the noise")
    return Model(s, args.full_rank_gate, args.gate_lower_bound, args.mtp, bos)


def main():
    args = parse_arguments()
    model = make_model(args)
    tensors = list(checkpoint_tensors(model))
    if not 1 <= args.shards <= len(tensors):
        sys.exit(f"--shards is {args.shards}; must be from 1 to {len(tensors)}, one a tensor")

    args.out.mkdir(parents=True, exist_ok=True)
    if any(args.out.iterdir()):
        sys.exit(f"{args.out} is not empty; name a new directory")
    write_weights(args.out, tensors, Values(args.seed), args.shards)
    (args.out / "config.json").write_text(json.dumps(config(model), indent=2) + "\n")
    if args.tokenizer is None:
        write_byte_tokenizer(args.out)
    else:
        for name in ("tiktoken.model", "tokenizer_config.json"):
            shutil.copyfile(args.tokenizer / name, args.out / name)

    total = sum(tensor.bytes for tensor in tensors)
    active = active_bytes(tensors, model)
    print(f"{args.out}: {len(tensors)} tensors, {sum(t.elements for t in tensors) / 1e6:.1f} M "
          f"parameters, {total / 1e6:.1f} MB; one token reads {active / 1e6:.1f} MB "
          f"({100 * active / total:.0f} %)")


if __name__ == "__main__":
    main()
