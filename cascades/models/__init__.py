"""Language models for one sequence, and how they come and go.

language       A model's forward pass, and its cache.
gemma_library  The only module that imports gemma.
products       How gemma's modules multiply here, and what is mended in them.
panels         Matrices as a CPU reads them best.
sharding       Over the devices of a mesh.
checkpoints    By name or folder, loaded where they belong, and written.
loading        Parameters as they are stored, and as they are to lie.
families       What a config.json says of a model, spelled out.
param_mapping  Gemma's parameters as tensors of Hugging Face's.
tensor_files   Files of safetensors.
huggingface    Folders in that layout.
gguf_files     Files of llama.cpp's format; `gguf_header`, `gguf_export`.
orbax_files    Checkpoints that gemma's authors wrote, and gemma fetches.
reduced        Layers that share another model's table, and say some tokens.
packaged       Real models that come as packages; `terms` has their terms.
tokenizers     Text to tokens and back.
turns          Conversations as instruction-tuned models know them.
"""
