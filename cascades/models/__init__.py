"""Language models for one sequence, and how they come and go.

language     The only module that imports gemma: a model's forward pass.
checkpoints  By name or folder, loaded where they belong.
families     What a config.json says of a model, spelled out.
huggingface  Folders of that format, read and written.
gguf_files   Files of llama.cpp's format, read and written.
packaged     Real models that come as Python packages; `terms` has their terms.
reduced      Layers that share another model's table, and say some tokens.
panels       Matrices as a CPU reads them best.
tokenizers   Text to tokens and back.
turns        Conversations as instruction-tuned models know them.
sharding     Over the devices of a mesh.
"""
