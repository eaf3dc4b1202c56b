"""Plan: what a step is told, as places in three arrays of int64. Not what is done with it (step.py).

One array says what the model is, where buffers lie and what this step is to do; one has a row for each layer, and one a
row for each matrix product. A place holds a count, or an address, or 0 for what a model does not have.
"""

# The model
(
    LAYERS, HIDDEN, HEADS, KV_HEADS, DIM, WIDE, VOCABULARY,
    WINDOW,  # tokens a query sees, itself included; 0: all
    FACTORS,  # float64: epsilon of the norms, scale of the scores, and `exact_above` of rows.quantise
    BLOCK_BYTES,  # of one KV block in one head of one layer
    HEAD_BYTES,  # of all blocks of a KV head in one layer
    LAYER_BYTES,  # of all KV heads of a layer
    EMBEDDING, EMBEDDING_BITS, NORM,
    CACHE,
    # Buffers, a row for each token of the largest step
    STREAM,  # float32 [tokens, hidden]: the residual stream
    BYTES,  # [tokens]: a row of whole numbers, as rows.py makes them
    WIDE_BYTES,  # the same behind the gates
    QKV,  # float32 [tokens, heads + 2 kv_heads, dim]
    QUERY,  # bfloat16 [kv_heads, tokens, heads / kv_heads, dim]
    ATTENDED,  # float32 [splits, tokens, heads, dim]
    STATES,  # float32 [splits, tokens, heads, 2]
    GATED,  # float32 [tokens, wide]
    LOGITS,  # float32 [samples and kept ones, vocabulary up to a multiple of 32]
    PICKING,  # room for a thread to sample in
    SCRATCH, SCRATCH_BYTES,  # a thread's own, and how much
    SAID,  # int64 [products, pieces at most]: what became of each (helping.py)
    # The step
    NUMBER,  # no other step had it
    TOKENS, ROWS, SAMPLES, UNITS,
    IDS,  # int32 [tokens]
    OWNERS,  # int32 [tokens]: each token's row
    POSITIONS,  # int32 [tokens]
    STARTS,  # int32 [rows + 1]: each row's first token
    TABLES, TABLE_WIDTH,  # int32 [rows, width]: block numbers
    TURNS,  # float32 [tokens, dim]: cosines, then sines
    UNIT,  # int32 [units, 4]: first token, tokens, split, row
    SAMPLED,  # int32 [samples]: rows
    SETTINGS,  # float64 [samples, 5]: temperature, top_k, top_p, min_p, uniform
    MASKS, MASK_BYTES,  # uint32: a bit for each id that may be taken; and how many bytes a mask has
    MASK_OF,  # int32 [samples]: which of the masks; -1: none
    EDITS, DIVISORS, ADDED,  # int32 ids, float32, float32: what is changed of logits
    EDIT_STARTS,  # int32 [samples + 1]: where each sample's begin
    KEPT,  # int32 [samples]: the row behind the samples' to which its logits are copied before edits, or -1
    RESULTS,  # int32 [rows]: the id, NOTHING, or what is broken
    CLOCKS,  # int64 [len(PHASES)]: cycles that each kind of phase took, summed up over layers and steps
) = range(54)
PLACES = 54

PHASES = (
    "embed", "attention norm", "qkv", "rotary, store", "attention", "merge", "output", "mlp norm", "gate, up",
    "quantise", "down", "last norm", "head", "sample",
)  # fmt: skip

# A layer: float32 vectors
ATTENTION_NORM, QUERY_NORM, KEY_NORM, MLP_NORM = range(4)
LAYER_PLACES = 4

# A product: a packed matrix, the bits of its numbers, and float32 that is added to what comes out. They stand in the
# order of a step, four of each layer and then the head's, so that each finds behind it whose weights come next; behind
# the head's that is the first one again.
MATRIX, BITS, OUTPUTS, INPUTS, BIAS = range(5)
PRODUCT_PLACES = 5
TO_QKV, TO_OUTPUT, TO_GATE_UP, TO_DOWN = range(4)  # of a layer
LAYER_PRODUCTS = 4

NOTHING, BROKEN_HIDDEN, BROKEN_LOGITS = -1, -2, -3
