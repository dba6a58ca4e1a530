/* scan of forward
 *   carry state <- v15
 *   v9: row[3] float32 = matmul(x, v8) {}  # rnn.py:32
 *   v12: row[3] float32 = matmul(state, v11) {}  # rnn.py:32
 *   v14_s29: row[3] float32 = add(v9, w1_s28) {}  # rnn.py:32
 *   v14: row[3] float32 = add(v14_s29, v12) {}  # rnn.py:32
 *   v15: row[3] float32 = tanh(v14) {}  # rnn.py:31
 *   out v15
 */
typedef struct {
    SN_SCAN;
    const float *x;
    const float *w1_s28;
    const float *v8;
    int64_t v8_stride_k;
    int64_t v8_stride_n;
    int64_t v8_stride_h;
    float *v8_packed;
    const float *v11;
    int64_t v11_stride_k;
    int64_t v11_stride_n;
    int64_t v11_stride_h;
    float *v11_packed;
    const float *state_boot;
    float *state_final;
    float *v15;
} arguments;

/* All steps of every shares-th sequence, longest first; by one thread, or by `members` that
 * split the rows of a step and the columns of its products, and meet in between. */
static void run_share(const arguments *a, int64_t index, int64_t slot, int64_t member,
                      int64_t members, sn_barrier *barrier) {
#define MEET if (members > 1) sn_meet(barrier, &sense, members)
    int64_t sense = 0;
    const int64_t shares = a->shares, count = (a->sequences - index + shares - 1) / shares;
    char *space = a->space + slot * a->space_bytes;
#define TAKE(type, n) (type *)space; space += ((n) * (int64_t)sizeof(type) + 63) / 64 * 64
    int64_t *row = TAKE(int64_t, count * members);
    row += member * count;
    float *state = TAKE(float, count * 3);
    float *state_next = TAKE(float, count * 3);
    int64_t *chunk_row = TAKE(int64_t, count * a->chunk * members);
    chunk_row += member * count * a->chunk;
    int64_t *chunk_slot = TAKE(int64_t, count * a->chunk * members);
    chunk_slot += member * count * a->chunk;
    float *v9_rows = TAKE(float, count * a->chunk * 3);
    float *v12_rows = TAKE(float, count * 3);
#undef TAKE
    for (int64_t i = member; i < count; i += members) {
        const int64_t b = a->order[index + i * shares];
        memcpy(state + i * 3, a->state_boot + b * 3, 3 * sizeof(float));
        if (a->length[b] > 0) continue;
        memcpy(a->state_final + b * 3, state + i * 3, 3 * sizeof(float));
    }
    int64_t active = count;
    for (int64_t t0 = 0; t0 < a->steps && active > 0; t0 += a->chunk) {
    const int64_t t1 = t0 + a->chunk < a->steps ? t0 + a->chunk : a->steps;
    int64_t rows = 0;
    for (int64_t t = t0, left = active; t < t1; ++t) {
        while (left > 0 && a->length[a->order[index + (left - 1) * shares]] <= t) --left;
        for (int64_t i = 0; i < left; ++i) {
            chunk_slot[rows] = (t - t0) * count + i;
            chunk_row[rows++] = a->start[a->order[index + i * shares]] + t * a->stride;
        }
    }
    MEET;
    /* v9 = matmul(x, v8)  [2] x [2, 3], rows of these steps */
    {
        const int64_t c0 = first_column(3, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(3, member + 1, members, SN_WIDTH * sn_lanes_f32);
        if (c1 > c0) sn_matmul_split((sn_rows_f32){v9_rows + c0, 3, chunk_slot}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)a->x, 2, chunk_row}, a->v8_packed + c0 * sn_deep_split(2, a->split), rows, 2, c1 - c0, a->split);
    }
    MEET;
    for (int64_t t = t0; t < t1; ++t) {
        while (active > 0 && a->length[a->order[index + (active - 1) * shares]] <= t) --active;
        if (active == 0) break;
        for (int64_t i = 0; i < active; ++i)
            row[i] = a->start[a->order[index + i * shares]] + t * a->stride;
        MEET;
        /* v12 = matmul(state, v11)  [3] x [3, 3] */
        {
            const int64_t c0 = first_column(3, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(3, member + 1, members, SN_WIDTH * sn_lanes_f32);
            if (c1 > c0) sn_matmul_split((sn_rows_f32){(float *)v12_rows + c0, 3, 0}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)state, 3, 0}, a->v11_packed + c0 * sn_deep_split(3, a->split), active, 3, c1 - c0, a->split);
        }
        MEET;
        /* row by row: v14_s29, v14, v15 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict v9_at = v9_rows + ((t - t0) * count + i) * 3;
            const float *restrict w1_s28_at = a->w1_s28;
            float *restrict v12_at = v12_rows + i * 3;
            float *restrict v15_at = a->v15 + row[i] * 3;
            float *restrict state_new = state_next + i * 3;
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v14_s29 = v9_at[j] + w1_s28_at[j];
                const float v14 = v14_s29 + v12_at[j];
                const float v15 = sn_tanh_f32(v14);
                v15_at[j] = v15;
                state_new[j] = v15;
            }
        }
        for (int64_t i = active; i-- > 0;) { /* sequences that end here */
            const int64_t b = a->order[index + i * shares];
            if (a->length[b] > t + 1) break;
            if (i % members != member) continue;
            memcpy(a->state_final + b * 3, state_next + i * 3, 3 * sizeof(float));
        }
        { float *now = state; state = state_next; state_next = now; }
    }
    }
#undef MEET
}

/* Matrices are packed anew at every call: they may have changed. */
static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    (void)count;
    if (index == 0) sn_pack_split(a->v8_packed, a->v8, a->v8_stride_k, a->v8_stride_n, 2, 3, a->split);
    if (index == 1) sn_pack_split(a->v11_packed, a->v11, a->v11_stride_k, a->v11_stride_n, 3, 3, a->split);
}

SN_DEAL;

void run(const sn_pool *pool, const arguments *a) {
    for (int64_t i = 0; i < 2; ++i) pack((void *)a, i, 2);
    sn_deal(pool, a);
}

/* scan of backward
 *   carry d_1 <- v21
 *   v16: row[3] float32 = add(d_1, d_0) {}  # rnn.py:34
 *   v17: row[3] float32 = mul(v15, v15) {}  # rnn.py:31
 *   v19: row[3] float32 = sub(v18, v17) {}  # rnn.py:31
 *   v20: row[3] float32 = mul(v16, v19) {}  # rnn.py:31
 *   v21: row[3] float32 = matmul(v20, w2) {}  # rnn.py:32
 *   v24: sum[3] float32 = sum_rows(v20) {}  # rnn.py:32
 *   out v20, v24
 */
typedef struct {
    SN_SCAN;
    const float *d_0;
    const float *v15;
    const float *w2;
    int64_t w2_stride_k;
    int64_t w2_stride_n;
    int64_t w2_stride_h;
    float *w2_packed;
    const float *d_1_boot;
    float *d_1_final;
    float *v20;
    float *v24;
} arguments;

/* All steps of every shares-th sequence, longest first; by one thread, or by `members` that
 * split the rows of a step and the columns of its products, and meet in between. */
static void run_share(const arguments *a, int64_t index, int64_t slot, int64_t member,
                      int64_t members, sn_barrier *barrier) {
#define MEET if (members > 1) sn_meet(barrier, &sense, members)
    int64_t sense = 0;
    const int64_t shares = a->shares, count = (a->sequences - index + shares - 1) / shares;
    char *space = a->space + slot * a->space_bytes;
#define TAKE(type, n) (type *)space; space += ((n) * (int64_t)sizeof(type) + 63) / 64 * 64
    int64_t *row = TAKE(int64_t, count * members);
    row += member * count;
    float *d_1 = TAKE(float, count * 3);
    float *d_1_next = TAKE(float, count * 3);
#undef TAKE
    float v24_part[3], *v24_sum = a->v24 + (slot * members + member) * 3;
    memset(v24_part, 0, sizeof v24_part);
    for (int64_t i = member; i < count; i += members) {
        const int64_t b = a->order[index + i * shares];
        memcpy(d_1 + i * 3, a->d_1_boot + b * 3, 3 * sizeof(float));
        if (a->length[b] > 0) continue;
        memcpy(a->d_1_final + b * 3, d_1 + i * 3, 3 * sizeof(float));
    }
    int64_t active = count;
    for (int64_t t = 0; t < a->steps; ++t) {
        while (active > 0 && a->length[a->order[index + (active - 1) * shares]] <= t) --active;
        if (active == 0) break;
        for (int64_t i = 0; i < active; ++i)
            row[i] = a->start[a->order[index + i * shares]] + t * a->stride;
        /* row by row: v16, v17, v19, v20, v24 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict d_1_at = d_1 + i * 3;
            const float *restrict d_0_at = a->d_0 + row[i] * 3;
            const float *restrict v15_at = a->v15 + row[i] * 3;
            float *restrict v20_at = a->v20 + row[i] * 3;
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v16 = d_1_at[j] + d_0_at[j];
                const float v17 = v15_at[j] * v15_at[j];
                const float v19 = 1.0f - v17;
                const float v20 = v16 * v19;
                v20_at[j] = v20;
                v24_part[j] += v20;
            }
        }
        MEET;
        /* v21 = matmul(v20, w2)  [3] x [3, 3] */
        {
            const int64_t c0 = first_column(3, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(3, member + 1, members, SN_WIDTH * sn_lanes_f32);
            if (c1 > c0) sn_matmul_split((sn_rows_f32){(float *)d_1_next + c0, 3, 0}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)a->v20, 3, row}, a->w2_packed + c0 * sn_deep_split(3, a->split), active, 3, c1 - c0, a->split);
        }
        MEET;
        for (int64_t i = active; i-- > 0;) { /* sequences that end here */
            const int64_t b = a->order[index + i * shares];
            if (a->length[b] > t + 1) break;
            if (i % members != member) continue;
            memcpy(a->d_1_final + b * 3, d_1_next + i * 3, 3 * sizeof(float));
        }
        { float *now = d_1; d_1 = d_1_next; d_1_next = now; }
        if (t % 64 == 63) { /* short sums of short sums lose fewer digits */
            for (int64_t j = 0; j < 3; ++j) { v24_sum[j] += v24_part[j]; v24_part[j] = 0; }
        }
    }
    for (int64_t j = 0; j < 3; ++j) { v24_sum[j] += v24_part[j]; v24_part[j] = 0; }
#undef MEET
}

/* Matrices are packed anew at every call: they may have changed. */
static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    (void)count;
    if (index == 0) sn_pack_split(a->w2_packed, a->w2, a->w2_stride_k, a->w2_stride_n, 3, 3, a->split);
}

SN_DEAL;

void run(const sn_pool *pool, const arguments *a) {
    for (int64_t i = 0; i < 1; ++i) pack((void *)a, i, 1);
    sn_deal(pool, a);
}
