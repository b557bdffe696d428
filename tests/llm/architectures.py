"""Tiny configurations of many architectures, by transformers' model type."""

SIZE = 258
COMMON = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
    # Large enough that tokens differ in probability.
    "initializer_range": 0.2,
}
GATED = {**COMMON, "intermediate_size": 64, "num_key_value_heads": 2}
HEADS = {**GATED, "head_dim": 8}
MIXED = ["sliding_attention", "full_attention"]
HYBRID = ["linear_attention", "full_attention"]
WINDOW = {**HEADS, "sliding_window": 4, "layer_types": MIXED}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
SHARED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
DELTA = {
    "layer_types": HYBRID,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
OLD = {"vocab_size": SIZE, "bos_token_id": None, "eos_token_id": 0, "initializer_range": 0.2}
STATE = {**OLD, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": None}

ATTENTION = {
    "gpt2": {**OLD, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "gpt_neox": {**COMMON, "intermediate_size": 64, "tie_word_embeddings": False},
    "opt": {**COMMON, "ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.2, "pad_token_id": 1},
    "bloom": {**OLD, "hidden_size": 32, "n_layer": 2, "n_head": 4, "pad_token_id": None},
    "falcon": {**COMMON, "num_kv_heads": 2, "new_decoder_architecture": True},
    "mpt": {**OLD, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
    "llama": GATED,
    "qwen2": GATED,
    "qwen3": HEADS,
    "gemma2": {
        **HEADS,
        "sliding_window": 4,
        "query_pre_attn_scalar": 8,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {**WINDOW, "query_pre_attn_scalar": 8},
    "phi": GATED,
    "phi3": {**GATED, "pad_token_id": 0},
    "mistral": {**GATED, "sliding_window": 4},
    "mixtral": {**GATED, **LOCAL},
    "qwen3_moe": {**HEADS, **EXPERTS, "decoder_sparse_step": 1},
    "cohere2": {**WINDOW, "logit_scale": 0.25},
    "olmo2": GATED,
    "glm4": {**HEADS, "pad_token_id": 0},
    "deepseek_v3": {
        **GATED,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        **SHARED,
    },
    "glm4_moe": {**HEADS, **SHARED},
    "granitemoe": {**GATED, **LOCAL},
    "olmoe": {**GATED, "num_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**GATED, **EXPERTS, "shared_expert_intermediate_size": 16},
    "gpt_oss": {**WINDOW, **LOCAL},
    "granite": GATED,
    "smollm3": {**GATED, "pad_token_id": 0},
    "stablelm": GATED,
    "starcoder2": {**GATED, "sliding_window": 4},
}
"""Their only state is a cache of keys and values, so prompts can be shared and rows padded."""

RECURRENT = {
    "mamba": STATE,
    "mamba2": {**STATE, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
    "rwkv": {
        "vocab_size": SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "attention_hidden_size": 32,
        "intermediate_size": 64,
        "context_length": 128,
        "bos_token_id": None,
        "eos_token_id": 0,
        "rescale_every": 1,
    },
    "recurrent_gemma": {
        **GATED,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "lru_width": 32,
        "attention_window_size": 4,
        "w_init_variance_scale": 1.0,
    },
    "qwen3_5_text": {**HEADS, **DELTA},
    "qwen3_next": {
        **HEADS,
        **EXPERTS,
        **DELTA,
        "shared_expert_intermediate_size": 16,
        "decoder_sparse_step": 1,
    },
    "lfm2": {
        **GATED,
        "layer_types": ["conv", "full_attention"],
        "full_attn_idxs": None,
        "conv_L_cache": 3,
        "block_multiple_of": 8,
    },
    "minimax": {**HEADS, **LOCAL, "block_size": 4, "layer_types": HYBRID},
    "falcon_h1": {
        **HEADS,
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
        "mamba_chunk_size": 4,
    },
    "bamba": {
        **GATED,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
        "mamba_chunk_size": 4,
        "attn_layer_indices": [1],
    },
    "jamba": {
        **GATED,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
        "pad_token_id": 0,
    },
    "zamba2": {
        **GATED,
        "num_key_value_heads": 4,
        "layers_block_type": ["mamba", "hybrid"],
        "hybrid_layer_ids": [1],
        "mamba_d_state": 8,
        "mamba_headdim": 16,
        "n_mamba_heads": 4,
        "mamba_ngroups": 1,
        "chunk_size": 4,
        "num_mem_blocks": 1,
        "adapter_rank": 4,
        "use_mamba_kernels": False,
    },
}
"""They have recurrent states, which a mask may not affect, or caches of another kind."""
