"""Language models for one sequence, and how they come and go.

language     The only module that imports gemma: a model's forward pass.
checkpoints  By name or folder, loaded where they belong.
huggingface  Folders of that format, read and written.
tokenizers   Text to tokens and back.
turns        Conversations as instruction-tuned models know them.
sharding     Over the devices of a mesh.
"""
