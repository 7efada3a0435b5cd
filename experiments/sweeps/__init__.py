"""Every point of a config, decoded, whatever happens meanwhile.

fields        Which fields a config can have, and of what type.
plan          What the points are.
launchers     Who decodes them: this process, others, a cluster.
worker        How.
fingerprints  Of what weights.
sequence      Cascades of whole answers.
costs         What a call of each model costs here.
workdirs      Where it is kept; `remote` where that is a URL.
trackers      Where it is shown beside.
"""
