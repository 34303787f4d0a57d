"""Tokens of chat templates by family of models, with their source, and innocent texts that look a little like them.

A source is a repository on the Hugging Face Hub, whose `tokenizer_config.json` (`added_tokens_decoder`,
`chat_template`) holds the tokens, or the documentation of the format.
"""

from __future__ import annotations

FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "ChatML": ("Qwen/Qwen2.5-7B-Instruct", ("<|im_start|>", "<|im_end|>", "<|endoftext|>")),
    "Qwen": ("Qwen/Qwen3-8B", ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>")),
    "Llama 2": ("meta-llama/Llama-2-7b-chat-hf", ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "<s>", "</s>", "<unk>")),
    "Llama 3": (
        "meta-llama/Llama-3.1-8B-Instruct",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    ),
    "Llama 4": ("meta-llama/Llama-4-Scout-17B-16E-Instruct", ("<|header_start|>", "<|header_end|>", "<|eot|>")),
    "Mistral": (
        "mistralai/mistral-common, tokens of Tekken",
        (
            *("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]"),
            *("[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]"),
            *("[THINK]", "[/THINK]", "[ARGS]", "[CALL_ID]"),
        ),
    ),
    "Gemma 2, 3": ("google/gemma-3-4b-it", ("<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<unused9>")),
    "Gemma 3n": ("google/gemma-3n-E4B-it", ("<start_of_turn>", "<start_of_image>", "<end_of_audio>", "<pad>")),
    "FunctionGemma": ("google/functiongemma-270m-it", ("<start_function_call>", "<end_function_declaration>")),
    "Gemma 4": (
        "google/gemma-4-E4B-it",
        (
            *("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool>", "<tool|>"),
            *("<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|image>"),
        ),
    ),
    "DeepSeek": (
        "deepseek-ai/DeepSeek-V3.2",
        (
            *(
                "<｜User｜>",
                "<｜Assistant｜>",
                "<｜begin▁of▁sentence｜>",
                "<｜tool▁calls▁begin｜>",
                "<｜end▁of▁sentence｜>",
            ),
            *("<｜DSML｜invoke name=", "</｜DSML｜function_calls>"),
        ),
    ),
    "Phi": ("microsoft/Phi-4-mini-instruct", ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|tool|>")),
    "Phi 4": ("microsoft/phi-4", ("<|im_sep|>", "<|dummy_85|>")),
    "gpt-oss": (
        "openai/harmony, docs/format.md",
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
    ),
    "GLM": (
        "zai-org/GLM-4.5",
        ("[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|observation|>", "<arg_key>", "</arg_value>"),
    ),
    "MiniMax": (
        "MiniMaxAI/MiniMax-M2",
        ("]~b]", "]~!b[", "[e~[", "]!p~[", "]!d~[", "]<]minimax[>[", "]<]start of image[>[", "<minimax:tool_call>"),
    ),
    "MiniMax M3": ("MiniMaxAI/MiniMax-M3", ("<mm:think>", "</mm:think>")),
    "MiniMax 01": ("MiniMaxAI/MiniMax-Text-01", ("<beginning_of_sentence>", "<end_of_sentence>", "<end_of_document>")),
    "Nemotron": (
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        ("<SPECIAL_10>", "<SPECIAL_12>", "<TOOLCALL>", "</TOOLCALL>", "<TOOL_RESPONSE>", "<AVAILABLE_TOOLS>"),
    ),
    "Nemotron 4": ("nvidia/Nemotron-Mini-4B-Instruct", ("<extra_id_0>", "<extra_id_1>")),
    "T5": ("google-t5/t5-base", ("<extra_id_0>", "<extra_id_99>", "<pad>", "</s>")),
    "Ling, Ring": ("inclusionAI/Ling-lite-1.5", ("<role>HUMAN</role>", "<role>\nsystem", "<|role_end|>")),
    "Kimi": (
        "moonshotai/Kimi-K2-Instruct",
        (
            *("<|im_user|>", "<|im_middle|>", "<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
            *("[BOS]", "[EOS]", "[EOT]", "[start_header_id]", "[end_header_id]"),
        ),
    ),
    "Hunyuan": ("tencent/Hunyuan-7B-Instruct", ("<｜hy_User｜>", "<｜hy_place▁holder▁no▁3｜>", "<|extra_0|>")),
    "InternLM": ("internlm/internlm2-chat-7b", ("[UNUSED_TOKEN_146]", "<|action_start|>", "<|plugin|>")),
    "InternLM 1": ("internlm/internlm-chat-7b", ("<eoh>", "<eoa>", "<TOKENS_UNUSED_0>")),
    "Command R, Aya": (
        "CohereLabs/c4ai-command-r7b-12-2024",
        ("<BOS_TOKEN>", "<EOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_ACTION|>", "<CLS>"),
    ),
    "Granite": ("ibm-granite/granite-3.3-8b-instruct", ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>")),
    "Jamba": ("ai21labs/AI21-Jamba-Mini-1.6", ("<|startoftext|>", "<|bom|>", "<|eom|>")),
    "OLMo, Tulu, Zephyr": ("allenai/OLMo-2-1124-7B-Instruct", ("<|user|>", "<|assistant|>", "<|endoftext|>")),
    "OLMo 3, Yi, SmolLM": ("allenai/Olmo-3-7B-Instruct", ("<|im_start|>", "<|startoftext|>", "<|endofprompt|>")),
    "Reka": ("RekaAI/reka-flash-3", ("<sep>", "<|endoftext|>")),
    "Baichuan": ("baichuan-inc/Baichuan2-7B-Chat", ("<reserved_106>", "<reserved_107>")),
    "Falcon": ("tiiuae/falcon-7b-instruct", (">>QUESTION<<", ">>ANSWER<<")),
    "Apertus": ("swiss-ai/Apertus-8B-Instruct-2509", ("<|user_start|>", "<|inner_prefix|>", "<|tools_prefix|>")),
    "LFM2": ("LiquidAI/LFM2-1.2B", ("<|tool_list_start|>", "<|tool_call_end|>")),
    "Step": ("stepfun-ai/step3", ("<|BOT|>", "<|EOT|>", "<|begin▁of▁sentence|>")),
    "ERNIE": ("baidu/ERNIE-4.5-21B-A3B-PT", ("<mask:1>", "<|IMAGE_PLACEHOLDER|>", "<|begin_of_sentence|>", "<cls>")),
    "EXAONE": ("LGAI-EXAONE/EXAONE-4.0-32B", ("[|user|]", "[|endofturn|]", "[|tool|]")),
    "Seed": ("ByteDance-Seed/Seed-OSS-36B-Instruct", ("<seed:bos>", "<seed:think>", "</seed:tool_call>")),
    "LongCat": ("meituan-longcat/LongCat-Flash-Chat", ("<longcat_user>", "</longcat_tool_call>")),
    "Pangu": ("ascend-tribe/openPangu-Embedded-7B, GitCode", ("[unused9]", "[unused10]")),
    "TeleChat": ("Tele-AI/telechat-7B", ("<_user>", "<_bot>", "<_end>")),
    "Code Llama": ("codellama/CodeLlama-7b-hf", ("<PRE>", "<EOT>", "<mask>")),
    "LLaVA": ("llava-hf/llava-1.5-7b-hf", ("<image>",)),
    "BERT": ("google-bert/bert-base-uncased", ("[SEP]", "[MASK]")),
    "several": ("no single model", ("<eom>", "<eod>", "<function_calls>")),
    "MiniCPM": ("openbmb/MiniCPM-2B-sft-bf16", ("<用户>", "<AI>")),
}
INNOCENT = (
    "0<x<y>z, a<b> c [1] [Smith 2010] [DNA] if x<y: f <| x |> g |> h",
    '# Memory é\n<div class="s"><br/></div> <answer>42</answer> x[TOOLS] <s id="1"> <thinking> <tools>',
    "List<String> std::vector<std::vector<int>> m; cin >> A; x >>= 2; print(x[i]<y[j])",
    "x]~ a[~i]+b[~j] y[x]!=z [a]![b](c) ]<[ ]<] >>> import this >>A<<B",
    r"\langle\psi|\phi\rangle, $a<b|c>d$, \left[ e^{~x} \right], <psi|phi>",
    '<?xml version="1.0"?><role>admin</role><mask id="m"/><unit>s</unit><end>1</end>',
    "[x] [X] [CI] [SOURCE] [INSTALL] [/url] [1, 2] [a|b] [~] dict[str, int] [UNUSED] [EOF]",
    "<filename> <your_name> <NAME> <0x0A> <-> <=> <<EOF <https://example.com> <a@b.org>",
)
