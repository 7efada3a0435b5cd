"""Language models for one sequence, and the formats they are stored in.

Models
  language        a model's forward pass, its cache and its products
  gemma_library   gemma's modules; alone imports gemma, with `patches`
  sharding        distribution over the devices of a mesh
  config_json     a config.json, read once into a `GemmaConfig`
Checkpoints
  checkpoints         loads and saves a model; the formats, and models in
                      Python packages: `assets`, and others (`terms`)
  param_mapping       gemma's parameters as Hugging Face tensors
  tensor_files        safetensors
  hub                 repositories of the Hugging Face hub
  gguf_files          files of llama.cpp's format
Text
  tokenizers  text to tokens and back, tokenizer.model and tokenizer.json
  chat        messages, and the templates that frame them
"""
