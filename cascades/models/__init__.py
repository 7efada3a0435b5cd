"""Language models for one sequence, and how they come and go.

language       A model's forward pass, and its cache.
gemma_library  The only module that imports gemma.
products       How gemma's modules multiply here, and what is mended in them.
blocked_layout Matrices in the order in which a CPU reads them fastest.
sharding       Over the devices of a mesh.
checkpoints    By name or folder, loaded where they belong, and written.
loading        Parameters as they are stored, and as they are to lie.
families       What a config.json says of a model, spelled out.
param_mapping  Gemma's parameters as tensors of Hugging Face's.
tensor_files   Files of safetensors.
huggingface    Folders in that layout.
gguf_files     Files of llama.cpp's format; `gguf_header`, `gguf_export`.
orbax_files    Checkpoints that gemma's authors wrote, and gemma fetches.
shared_table   Layers that share the embedding table of another model.
package_index  Models in Python packages; `terms` has their licences.
tokenizers     Text to tokens and back.
turns          Conversations as instruction-tuned models know them.
"""
