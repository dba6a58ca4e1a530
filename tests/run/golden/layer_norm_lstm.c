/* scan of forward
 *   carry state[0] <- v67
 *   carry state[1] <- v52
 *   v15: row[12] float32 = matmul(x, v14) {}  # layer_norm_lstm.py:65
 *   v30: row[12] float32 = matmul(state[0], v29) {}  # layer_norm_lstm.py:66
 *   v31: row[1] float32 = sum(v30) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v32: row[1] float32 = mul(v31, v17) {}  # layer_norm_lstm.py:65
 *   v33: row[12] float32 = sub(v30, v32) {}  # layer_norm_lstm.py:65
 *   v34: row[12] float32 = mul(v33, v33) {}  # layer_norm_lstm.py:65
 *   v35: row[1] float32 = sum(v34) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v36: row[1] float32 = mul(v35, v17) {}  # layer_norm_lstm.py:65
 *   v37: row[1] float32 = add(v36, v23) {}  # layer_norm_lstm.py:65
 *   v38: row[1] float32 = rsqrt(v37) {}  # layer_norm_lstm.py:65
 *   v39: row[12] float32 = mul(v33, v38) {}  # layer_norm_lstm.py:65
 *   v40: row[12] float32 = mul(v39, w4) {}  # layer_norm_lstm.py:65
 *   v16: row[1] float32 = sum(v15) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v18: row[1] float32 = mul(v16, v17) {}  # layer_norm_lstm.py:65
 *   v19: row[12] float32 = sub(v15, v18) {}  # layer_norm_lstm.py:65
 *   v20: row[12] float32 = mul(v19, v19) {}  # layer_norm_lstm.py:65
 *   v21: row[1] float32 = sum(v20) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v22: row[1] float32 = mul(v21, v17) {}  # layer_norm_lstm.py:65
 *   v24: row[1] float32 = add(v22, v23) {}  # layer_norm_lstm.py:65
 *   v25: row[1] float32 = rsqrt(v24) {}  # layer_norm_lstm.py:65
 *   v26: row[12] float32 = mul(v19, v25) {}  # layer_norm_lstm.py:65
 *   v27: row[12] float32 = mul(v26, w1) {}  # layer_norm_lstm.py:65
 *   v42_s139: row[12] float32 = add(v27, w2_s138) {}  # layer_norm_lstm.py:65
 *   v42: row[12] float32 = add(v42_s139, v40) {}  # layer_norm_lstm.py:65
 *   v43: row[3] float32 = slice(v42) {'dim': 0, 'start': 0, 'end': 3, 'step': 1}  # layer_norm_lstm.py:68
 *   v44: row[3] float32 = slice(v42) {'dim': 0, 'start': 3, 'end': 6, 'step': 1}  # layer_norm_lstm.py:68
 *   v45: row[3] float32 = slice(v42) {'dim': 0, 'start': 6, 'end': 9, 'step': 1}  # layer_norm_lstm.py:68
 *   v46: row[3] float32 = slice(v42) {'dim': 0, 'start': 9, 'end': 12, 'step': 1}  # layer_norm_lstm.py:68
 *   v47: row[3] float32 = sigmoid(v44) {}  # layer_norm_lstm.py:69
 *   v48: row[3] float32 = mul(v47, state[1]) {}  # layer_norm_lstm.py:69
 *   v49: row[3] float32 = sigmoid(v43) {}  # layer_norm_lstm.py:69
 *   v50: row[3] float32 = tanh(v45) {}  # layer_norm_lstm.py:69
 *   v51: row[3] float32 = mul(v49, v50) {}  # layer_norm_lstm.py:69
 *   v52: row[3] float32 = add(v48, v51) {}  # layer_norm_lstm.py:69
 *   v53: row[3] float32 = sigmoid(v46) {}  # layer_norm_lstm.py:70
 *   v54: row[1] float32 = sum(v52) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v56: row[1] float32 = mul(v54, v55) {}  # layer_norm_lstm.py:70
 *   v57: row[3] float32 = sub(v52, v56) {}  # layer_norm_lstm.py:70
 *   v58: row[3] float32 = mul(v57, v57) {}  # layer_norm_lstm.py:70
 *   v59: row[1] float32 = sum(v58) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v60: row[1] float32 = mul(v59, v55) {}  # layer_norm_lstm.py:70
 *   v61: row[1] float32 = add(v60, v23) {}  # layer_norm_lstm.py:70
 *   v62: row[1] float32 = rsqrt(v61) {}  # layer_norm_lstm.py:70
 *   v63: row[3] float32 = mul(v57, v62) {}  # layer_norm_lstm.py:70
 *   v64: row[3] float32 = mul(v63, w6) {}  # layer_norm_lstm.py:70
 *   v65: row[3] float32 = add(v64, w7) {}  # layer_norm_lstm.py:70
 *   v66: row[3] float32 = tanh(v65) {}  # layer_norm_lstm.py:70
 *   v67: row[3] float32 = mul(v53, v66) {}  # layer_norm_lstm.py:70
 *   out state[1], v19, v33, v67
 */
typedef struct {
    int64_t sequences, shares, steps, stride; /* row of sequence b at step t: start[b] + t * stride */
    int64_t chunk; /* steps at a time */
    int64_t together; /* 1: all threads on one share */
    const int64_t *start, *length, *order; /* order: longest first */
    char *space; /* workspace, space_bytes for each share */
    int64_t space_bytes;
    const float *x;
    const float *w1;
    const float *w2_s138;
    const float *w4;
    const float *w6;
    const float *w7;
    const float *v14;
    int64_t v14_stride_k;
    int64_t v14_stride_n;
    int64_t v14_stride_h;
    float *v14_packed;
    const float *v29;
    int64_t v29_stride_k;
    int64_t v29_stride_n;
    int64_t v29_stride_h;
    float *v29_packed;
    const float *state_0_boot;
    float *state_0_final;
    const float *state_1_boot;
    float *state_1_final;
    float *state_1_copy0;
    float *v19;
    float *v33;
    float *v67;
} arguments;

/* Where a member's columns of a product begin: whole panels. */
static inline int64_t first_column(int64_t n, int64_t member, int64_t members, int64_t panel) {
    const int64_t panels = (n + panel - 1) / panel, column = panels * member / members * panel;
    return column < n ? column : n;
}

/* All steps of every shares-th sequence, longest first; by one thread, or by `members` that
 * split the rows of a step and the columns of its products, and meet in between. */
static void run_share(const arguments *a, int64_t index, int64_t shares, int64_t member,
                      int64_t members, sn_barrier *barrier) {
#define MEET if (members > 1) sn_meet(barrier, &sense, members)
    int64_t sense = 0;
    const int64_t count = (a->sequences - index + shares - 1) / shares;
    char *space = a->space + index * a->space_bytes;
#define TAKE(type, n) (type *)space; space += ((n) * (int64_t)sizeof(type) + 63) / 64 * 64
    int64_t *row = TAKE(int64_t, count * members);
    row += member * count;
    float *state_0 = TAKE(float, count * 3);
    float *state_0_next = TAKE(float, count * 3);
    float *state_1 = TAKE(float, count * 3);
    float *state_1_next = TAKE(float, count * 3);
    int64_t *chunk_row = TAKE(int64_t, count * a->chunk * members);
    chunk_row += member * count * a->chunk;
    int64_t *chunk_slot = TAKE(int64_t, count * a->chunk * members);
    chunk_slot += member * count * a->chunk;
    float *v15_rows = TAKE(float, count * a->chunk * 12);
    float *v30_rows = TAKE(float, count * 12);
#undef TAKE
    for (int64_t i = member; i < count; i += members) {
        const int64_t b = a->order[index + i * shares];
        memcpy(state_0 + i * 3, a->state_0_boot + b * 3, 3 * sizeof(float));
        memcpy(state_1 + i * 3, a->state_1_boot + b * 3, 3 * sizeof(float));
        if (a->length[b] > 0) continue;
        memcpy(a->state_0_final + b * 3, state_0 + i * 3, 3 * sizeof(float));
        memcpy(a->state_1_final + b * 3, state_1 + i * 3, 3 * sizeof(float));
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
    /* v15 = matmul(x, v14)  [2] x [2, 12], rows of these steps */
    {
        const int64_t c0 = first_column(12, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(12, member + 1, members, SN_WIDTH * sn_lanes_f32);
        if (c1 > c0) sn_matmul_f32((sn_rows_f32){v15_rows + c0, 12, chunk_slot}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)a->x, 2, chunk_row}, a->v14_packed + c0 * 2, rows, 2, c1 - c0);
    }
    MEET;
    for (int64_t t = t0; t < t1; ++t) {
        while (active > 0 && a->length[a->order[index + (active - 1) * shares]] <= t) --active;
        if (active == 0) break;
        for (int64_t i = 0; i < active; ++i)
            row[i] = a->start[a->order[index + i * shares]] + t * a->stride;
        /* row by row: v16, v18, v19 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict v15_at = v15_rows + ((t - t0) * count + i) * 12;
            float *restrict v19_at = a->v19 + row[i] * 12;
            float v16 = 0;
            #pragma omp simd reduction(+ : v16)
            for (int64_t j = 0; j < 12; ++j) {
                v16 += v15_at[j];
            }
            const float v18 = v16 * 0.08333333333333333f;
            #pragma omp simd
            for (int64_t j = 0; j < 12; ++j) {
                const float v19 = v15_at[j] - v18;
                v19_at[j] = v19;
            }
        }
        MEET;
        /* v30 = matmul(state[0], v29)  [3] x [3, 12] */
        {
            const int64_t c0 = first_column(12, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(12, member + 1, members, SN_WIDTH * sn_lanes_f32);
            if (c1 > c0) sn_matmul_f32((sn_rows_f32){(float *)v30_rows + c0, 12, 0}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)state_0, 3, 0}, a->v29_packed + c0 * 3, active, 3, c1 - c0);
        }
        MEET;
        /* row by row: v31, v32, v33, v34, v35, v36, v37, v38, v20, v21, v22, v24, v25, v26_0_3, v27_0_3, v42_s139_0_3, v39_0_3, v40_0_3, v43, v26_3_6, v27_3_6, v42_s139_3_6, v39_3_6, v40_3_6, v44, v26_6_9, v27_6_9, v42_s139_6_9, v39_6_9, v40_6_9, v45, v26_9_12, v27_9_12, v42_s139_9_12, v39_9_12, v40_9_12, v46, v47, v48, v49, v50, v51, v52, v53, v54, v56, v57, v58, v59, v60, v61, v62, v63, v64, v65, v66, v67, state[1]_copy0 */
        for (int64_t i = member; i < active; i += members) {
            float v57_line[3] __attribute__((aligned(64)));
            float *restrict v30_at = v30_rows + i * 12;
            float *restrict v19_at = a->v19 + row[i] * 12;
            const float *restrict state_1_at = state_1 + i * 3;
            float *restrict state_1_copy0_at = a->state_1_copy0 + row[i] * 3;
            float *restrict v33_at = a->v33 + row[i] * 12;
            const float *restrict w1_at = a->w1;
            const float *restrict w2_s138_at = a->w2_s138;
            const float *restrict w4_at = a->w4;
            float *restrict state_1_new = state_1_next + i * 3;
            const float *restrict w6_at = a->w6;
            const float *restrict w7_at = a->w7;
            float *restrict v67_at = a->v67 + row[i] * 3;
            float *restrict state_0_new = state_0_next + i * 3;
            float v31 = 0;
            float v21 = 0;
            #pragma omp simd reduction(+ : v31, v21)
            for (int64_t j = 0; j < 12; ++j) {
                v31 += v30_at[j];
                const float v20 = v19_at[j] * v19_at[j];
                v21 += v20;
            }
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float state_1_copy0 = state_1_at[j];
                state_1_copy0_at[j] = state_1_copy0;
            }
            const float v32 = v31 * 0.08333333333333333f;
            float v35 = 0;
            #pragma omp simd reduction(+ : v35)
            for (int64_t j = 0; j < 12; ++j) {
                const float v33 = v30_at[j] - v32;
                v33_at[j] = v33;
                const float v34 = v33 * v33;
                v35 += v34;
            }
            const float v36 = v35 * 0.08333333333333333f;
            const float v37 = v36 + 1e-05f;
            const float v38 = sn_rsqrt_f32(v37);
            const float v22 = v21 * 0.08333333333333333f;
            const float v24 = v22 + 1e-05f;
            const float v25 = sn_rsqrt_f32(v24);
            float v54 = 0;
            #pragma omp simd reduction(+ : v54)
            for (int64_t j = 0; j < 3; ++j) {
                const float v26_0_3 = v19_at[j] * v25;
                const float v27_0_3 = v26_0_3 * w1_at[j];
                const float v42_s139_0_3 = v27_0_3 + w2_s138_at[j];
                const float v39_0_3 = v33_at[j] * v38;
                const float v40_0_3 = v39_0_3 * w4_at[j];
                const float v43 = v42_s139_0_3 + v40_0_3;
                const float v26_3_6 = v19_at[j + 3] * v25;
                const float v27_3_6 = v26_3_6 * w1_at[j + 3];
                const float v42_s139_3_6 = v27_3_6 + w2_s138_at[j + 3];
                const float v39_3_6 = v33_at[j + 3] * v38;
                const float v40_3_6 = v39_3_6 * w4_at[j + 3];
                const float v44 = v42_s139_3_6 + v40_3_6;
                const float v26_6_9 = v19_at[j + 6] * v25;
                const float v27_6_9 = v26_6_9 * w1_at[j + 6];
                const float v42_s139_6_9 = v27_6_9 + w2_s138_at[j + 6];
                const float v39_6_9 = v33_at[j + 6] * v38;
                const float v40_6_9 = v39_6_9 * w4_at[j + 6];
                const float v45 = v42_s139_6_9 + v40_6_9;
                const float v47 = sn_sigmoid_f32(v44);
                const float v48 = v47 * state_1_at[j];
                const float v49 = sn_sigmoid_f32(v43);
                const float v50 = sn_tanh_f32(v45);
                const float v51 = v49 * v50;
                const float v52 = v48 + v51;
                state_1_new[j] = v52;
                v54 += v52;
            }
            const float v56 = v54 * 0.3333333333333333f;
            float v59 = 0;
            #pragma omp simd reduction(+ : v59)
            for (int64_t j = 0; j < 3; ++j) {
                const float v57 = state_1_new[j] - v56;
                v57_line[j] = v57;
                const float v58 = v57 * v57;
                v59 += v58;
            }
            const float v60 = v59 * 0.3333333333333333f;
            const float v61 = v60 + 1e-05f;
            const float v62 = sn_rsqrt_f32(v61);
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v26_9_12 = v19_at[j + 9] * v25;
                const float v27_9_12 = v26_9_12 * w1_at[j + 9];
                const float v42_s139_9_12 = v27_9_12 + w2_s138_at[j + 9];
                const float v39_9_12 = v33_at[j + 9] * v38;
                const float v40_9_12 = v39_9_12 * w4_at[j + 9];
                const float v46 = v42_s139_9_12 + v40_9_12;
                const float v53 = sn_sigmoid_f32(v46);
                const float v63 = v57_line[j] * v62;
                const float v64 = v63 * w6_at[j];
                const float v65 = v64 + w7_at[j];
                const float v66 = sn_tanh_f32(v65);
                const float v67 = v53 * v66;
                v67_at[j] = v67;
                state_0_new[j] = v67;
            }
        }
        for (int64_t i = active; i-- > 0;) { /* sequences that end here */
            const int64_t b = a->order[index + i * shares];
            if (a->length[b] > t + 1) break;
            if (i % members != member) continue;
            memcpy(a->state_0_final + b * 3, state_0_next + i * 3, 3 * sizeof(float));
            memcpy(a->state_1_final + b * 3, state_1_next + i * 3, 3 * sizeof(float));
        }
        { float *now = state_0; state_0 = state_0_next; state_0_next = now; }
        { float *now = state_1; state_1 = state_1_next; state_1_next = now; }
    }
    }
#undef MEET
}

/* Matrices are packed anew at every call: they may have changed. */
static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    (void)count;
    if (index == 0) sn_pack_f32(a->v14_packed, a->v14, a->v14_stride_k, a->v14_stride_n, 2, 12, 1, SN_WIDTH);
    if (index == 1) sn_pack_f32(a->v29_packed, a->v29, a->v29_stride_k, a->v29_stride_n, 3, 12, 1, SN_WIDTH);
}

typedef struct {
    const arguments *a;
    sn_barrier barrier;
} team;

static void share(void *data, int64_t index, int64_t shares) {
    run_share(((team *)data)->a, index, shares, 0, 1, 0);
}

static void member_of(void *data, int64_t index, int64_t count) {
    run_share(((team *)data)->a, 0, 1, index, count, &((team *)data)->barrier);
}

void run(const sn_pool *pool, const arguments *a) {
    for (int64_t i = 0; i < 2; ++i) pack((void *)a, i, 2);
    team everyone = {a, {0, 0}};
    if (a->together) sn_together(pool, member_of, &everyone);
    else sn_parallel(pool, a->shares, share, &everyone);
}

/* scan of backward
 *   carry d_1 <- v123
 *   carry d_2 <- v101
 *   v68: row[3] float32 = add(d_1, d_0) {}  # layer_norm_lstm.py:70
 *   v34: row[12] float32 = mul(v33, v33) {}  # layer_norm_lstm.py:65
 *   v35: row[1] float32 = sum(v34) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v36: row[1] float32 = mul(v35, v17) {}  # layer_norm_lstm.py:65
 *   v37: row[1] float32 = add(v36, v23) {}  # layer_norm_lstm.py:65
 *   v38: row[1] float32 = rsqrt(v37) {}  # layer_norm_lstm.py:65
 *   v39: row[12] float32 = mul(v33, v38) {}  # layer_norm_lstm.py:65
 *   v40: row[12] float32 = mul(v39, w4) {}  # layer_norm_lstm.py:65
 *   v20: row[12] float32 = mul(v19, v19) {}  # layer_norm_lstm.py:65
 *   v21: row[1] float32 = sum(v20) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v22: row[1] float32 = mul(v21, v17) {}  # layer_norm_lstm.py:65
 *   v24: row[1] float32 = add(v22, v23) {}  # layer_norm_lstm.py:65
 *   v25: row[1] float32 = rsqrt(v24) {}  # layer_norm_lstm.py:65
 *   v26: row[12] float32 = mul(v19, v25) {}  # layer_norm_lstm.py:65
 *   v27: row[12] float32 = mul(v26, w1) {}  # layer_norm_lstm.py:65
 *   v42_s139: row[12] float32 = add(v27, w2_s138) {}  # layer_norm_lstm.py:65
 *   v42: row[12] float32 = add(v42_s139, v40) {}  # layer_norm_lstm.py:65
 *   v46: row[3] float32 = slice(v42) {'dim': 0, 'start': 9, 'end': 12, 'step': 1}  # layer_norm_lstm.py:68
 *   v53: row[3] float32 = sigmoid(v46) {}  # layer_norm_lstm.py:70
 *   v69: row[3] float32 = mul(v68, v53) {}  # layer_norm_lstm.py:70
 *   v45: row[3] float32 = slice(v42) {'dim': 0, 'start': 6, 'end': 9, 'step': 1}  # layer_norm_lstm.py:68
 *   v50: row[3] float32 = tanh(v45) {}  # layer_norm_lstm.py:69
 *   v43: row[3] float32 = slice(v42) {'dim': 0, 'start': 0, 'end': 3, 'step': 1}  # layer_norm_lstm.py:68
 *   v49: row[3] float32 = sigmoid(v43) {}  # layer_norm_lstm.py:69
 *   v51: row[3] float32 = mul(v49, v50) {}  # layer_norm_lstm.py:69
 *   v44: row[3] float32 = slice(v42) {'dim': 0, 'start': 3, 'end': 6, 'step': 1}  # layer_norm_lstm.py:68
 *   v47: row[3] float32 = sigmoid(v44) {}  # layer_norm_lstm.py:69
 *   v48: row[3] float32 = mul(v47, state[1]) {}  # layer_norm_lstm.py:69
 *   v52: row[3] float32 = add(v48, v51) {}  # layer_norm_lstm.py:69
 *   v54: row[1] float32 = sum(v52) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v56: row[1] float32 = mul(v54, v55) {}  # layer_norm_lstm.py:70
 *   v57: row[3] float32 = sub(v52, v56) {}  # layer_norm_lstm.py:70
 *   v58: row[3] float32 = mul(v57, v57) {}  # layer_norm_lstm.py:70
 *   v59: row[1] float32 = sum(v58) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v60: row[1] float32 = mul(v59, v55) {}  # layer_norm_lstm.py:70
 *   v61: row[1] float32 = add(v60, v23) {}  # layer_norm_lstm.py:70
 *   v62: row[1] float32 = rsqrt(v61) {}  # layer_norm_lstm.py:70
 *   v63: row[3] float32 = mul(v57, v62) {}  # layer_norm_lstm.py:70
 *   v64: row[3] float32 = mul(v63, w6) {}  # layer_norm_lstm.py:70
 *   v65: row[3] float32 = add(v64, w7) {}  # layer_norm_lstm.py:70
 *   v66: row[3] float32 = tanh(v65) {}  # layer_norm_lstm.py:70
 *   v70: row[3] float32 = mul(v68, v66) {}  # layer_norm_lstm.py:70
 *   v71: row[3] float32 = mul(v66, v66) {}  # layer_norm_lstm.py:70
 *   v73: row[3] float32 = sub(v72, v71) {}  # layer_norm_lstm.py:70
 *   v74: row[3] float32 = mul(v69, v73) {}  # layer_norm_lstm.py:70
 *   v75: row[3] float32 = mul(v74, w6) {}  # layer_norm_lstm.py:70
 *   v77: row[3] float32 = mul(v75, v76) {}  # layer_norm_lstm.py:70
 *   v78: row[1] float32 = sum(v75) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v79: row[3] float32 = mul(v75, v63) {}  # layer_norm_lstm.py:70
 *   v80: row[1] float32 = sum(v79) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v81: row[3] float32 = mul(v63, v80) {}  # layer_norm_lstm.py:70
 *   v82: row[3] float32 = sub(v77, v78) {}  # layer_norm_lstm.py:70
 *   v83: row[3] float32 = sub(v82, v81) {}  # layer_norm_lstm.py:70
 *   v84: row[1] float32 = div(v62, v76) {}  # layer_norm_lstm.py:70
 *   v85: row[3] float32 = mul(v84, v83) {}  # layer_norm_lstm.py:70
 *   v89: row[3] float32 = add(d_2, v85) {}  # layer_norm_lstm.py:70
 *   v90: row[3] float32 = sub(v72, v53) {}  # layer_norm_lstm.py:70
 *   v91: row[3] float32 = mul(v53, v90) {}  # layer_norm_lstm.py:70
 *   v92: row[3] float32 = mul(v70, v91) {}  # layer_norm_lstm.py:70
 *   v93: row[3] float32 = mul(v89, v49) {}  # layer_norm_lstm.py:69
 *   v94: row[3] float32 = mul(v89, v50) {}  # layer_norm_lstm.py:69
 *   v95: row[3] float32 = mul(v50, v50) {}  # layer_norm_lstm.py:69
 *   v96: row[3] float32 = sub(v72, v95) {}  # layer_norm_lstm.py:69
 *   v97: row[3] float32 = mul(v93, v96) {}  # layer_norm_lstm.py:69
 *   v98: row[3] float32 = sub(v72, v49) {}  # layer_norm_lstm.py:69
 *   v99: row[3] float32 = mul(v49, v98) {}  # layer_norm_lstm.py:69
 *   v100: row[3] float32 = mul(v94, v99) {}  # layer_norm_lstm.py:69
 *   v101: row[3] float32 = mul(v89, v47) {}  # layer_norm_lstm.py:69
 *   v102: row[3] float32 = mul(v89, state[1]) {}  # layer_norm_lstm.py:69
 *   v103: row[3] float32 = sub(v72, v47) {}  # layer_norm_lstm.py:69
 *   v104: row[3] float32 = mul(v47, v103) {}  # layer_norm_lstm.py:69
 *   v105: row[3] float32 = mul(v102, v104) {}  # layer_norm_lstm.py:69
 *   v106: row[12] float32 = cat(v100, v105, v97, v92) {'dim': 0}  # layer_norm_lstm.py:68
 *   v107: row[12] float32 = mul(v106, w4) {}  # layer_norm_lstm.py:65
 *   v109: row[12] float32 = mul(v107, v108) {}  # layer_norm_lstm.py:65
 *   v110: row[1] float32 = sum(v107) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v111: row[12] float32 = mul(v107, v39) {}  # layer_norm_lstm.py:65
 *   v112: row[1] float32 = sum(v111) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v113: row[12] float32 = mul(v39, v112) {}  # layer_norm_lstm.py:65
 *   v114: row[12] float32 = sub(v109, v110) {}  # layer_norm_lstm.py:65
 *   v115: row[12] float32 = sub(v114, v113) {}  # layer_norm_lstm.py:65
 *   v116: row[1] float32 = div(v38, v108) {}  # layer_norm_lstm.py:65
 *   v117: row[12] float32 = mul(v116, v115) {}  # layer_norm_lstm.py:65
 *   v123: row[3] float32 = matmul(v117, w3) {}  # layer_norm_lstm.py:66
 *   v86: row[3] float32 = mul(v74, v63) {}  # layer_norm_lstm.py:70
 *   v87: sum[3] float32 = sum_rows(v86) {}  # layer_norm_lstm.py:70
 *   v88: sum[3] float32 = sum_rows(v74) {}  # layer_norm_lstm.py:70
 *   v118: row[12] float32 = mul(v106, v39) {}  # layer_norm_lstm.py:65
 *   v119: sum[12] float32 = sum_rows(v118) {}  # layer_norm_lstm.py:65
 *   v120: sum[12] float32 = sum_rows(v106) {}  # layer_norm_lstm.py:65
 *   v124: row[12] float32 = mul(v106, w1) {}  # layer_norm_lstm.py:65
 *   v125: row[12] float32 = mul(v124, v108) {}  # layer_norm_lstm.py:65
 *   v126: row[1] float32 = sum(v124) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v127: row[12] float32 = mul(v124, v26) {}  # layer_norm_lstm.py:65
 *   v128: row[1] float32 = sum(v127) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v129: row[12] float32 = mul(v26, v128) {}  # layer_norm_lstm.py:65
 *   v130: row[12] float32 = sub(v125, v126) {}  # layer_norm_lstm.py:65
 *   v131: row[12] float32 = sub(v130, v129) {}  # layer_norm_lstm.py:65
 *   v132: row[1] float32 = div(v25, v108) {}  # layer_norm_lstm.py:65
 *   v133: row[12] float32 = mul(v132, v131) {}  # layer_norm_lstm.py:65
 *   v134: row[12] float32 = mul(v106, v26) {}  # layer_norm_lstm.py:65
 *   v135: sum[12] float32 = sum_rows(v134) {}  # layer_norm_lstm.py:65
 *   out v87, v88, v117, v119, v120, v133, v135
 */
typedef struct {
    int64_t sequences, shares, steps, stride; /* row of sequence b at step t: start[b] + t * stride */
    int64_t chunk; /* steps at a time */
    int64_t together; /* 1: all threads on one share */
    const int64_t *start, *length, *order; /* order: longest first */
    char *space; /* workspace, space_bytes for each share */
    int64_t space_bytes;
    const float *d_0;
    const float *v33;
    const float *v19;
    const float *state_1;
    const float *w1;
    const float *w2_s138;
    const float *w4;
    const float *w6;
    const float *w7;
    const float *w3;
    int64_t w3_stride_k;
    int64_t w3_stride_n;
    int64_t w3_stride_h;
    float *w3_packed;
    const float *d_1_boot;
    float *d_1_final;
    const float *d_2_boot;
    float *d_2_final;
    float *v117;
    float *v133;
    float *v87;
    float *v88;
    float *v119;
    float *v120;
    float *v135;
} arguments;

/* Where a member's columns of a product begin: whole panels. */
static inline int64_t first_column(int64_t n, int64_t member, int64_t members, int64_t panel) {
    const int64_t panels = (n + panel - 1) / panel, column = panels * member / members * panel;
    return column < n ? column : n;
}

/* All steps of every shares-th sequence, longest first; by one thread, or by `members` that
 * split the rows of a step and the columns of its products, and meet in between. */
static void run_share(const arguments *a, int64_t index, int64_t shares, int64_t member,
                      int64_t members, sn_barrier *barrier) {
#define MEET if (members > 1) sn_meet(barrier, &sense, members)
    int64_t sense = 0;
    const int64_t count = (a->sequences - index + shares - 1) / shares;
    char *space = a->space + index * a->space_bytes;
#define TAKE(type, n) (type *)space; space += ((n) * (int64_t)sizeof(type) + 63) / 64 * 64
    int64_t *row = TAKE(int64_t, count * members);
    row += member * count;
    float *d_1 = TAKE(float, count * 3);
    float *d_1_next = TAKE(float, count * 3);
    float *d_2 = TAKE(float, count * 3);
    float *d_2_next = TAKE(float, count * 3);
    float *v106_rows = TAKE(float, count * 12);
#undef TAKE
    float v87_part[3], *v87_sum = a->v87 + (index * members + member) * 3;
    memset(v87_part, 0, sizeof v87_part);
    memset(v87_sum, 0, sizeof v87_part);
    float v88_part[3], *v88_sum = a->v88 + (index * members + member) * 3;
    memset(v88_part, 0, sizeof v88_part);
    memset(v88_sum, 0, sizeof v88_part);
    float v119_part[12], *v119_sum = a->v119 + (index * members + member) * 12;
    memset(v119_part, 0, sizeof v119_part);
    memset(v119_sum, 0, sizeof v119_part);
    float v120_part[12], *v120_sum = a->v120 + (index * members + member) * 12;
    memset(v120_part, 0, sizeof v120_part);
    memset(v120_sum, 0, sizeof v120_part);
    float v135_part[12], *v135_sum = a->v135 + (index * members + member) * 12;
    memset(v135_part, 0, sizeof v135_part);
    memset(v135_sum, 0, sizeof v135_part);
    for (int64_t i = member; i < count; i += members) {
        const int64_t b = a->order[index + i * shares];
        memcpy(d_1 + i * 3, a->d_1_boot + b * 3, 3 * sizeof(float));
        memcpy(d_2 + i * 3, a->d_2_boot + b * 3, 3 * sizeof(float));
        if (a->length[b] > 0) continue;
        memcpy(a->d_1_final + b * 3, d_1 + i * 3, 3 * sizeof(float));
        memcpy(a->d_2_final + b * 3, d_2 + i * 3, 3 * sizeof(float));
    }
    int64_t active = count;
    for (int64_t t = 0; t < a->steps; ++t) {
        while (active > 0 && a->length[a->order[index + (active - 1) * shares]] <= t) --active;
        if (active == 0) break;
        for (int64_t i = 0; i < active; ++i)
            row[i] = a->start[a->order[index + i * shares]] + t * a->stride;
        /* row by row: v68, v34, v35, v36, v37, v38, v39, v20, v21, v22, v24, v25, v26, v27_9_12, v42_s139_9_12, v40_9_12, v46, v53, v69, v27_6_9, v42_s139_6_9, v40_6_9, v45, v50, v27_0_3, v42_s139_0_3, v40_0_3, v43, v49, v51, v27_3_6, v42_s139_3_6, v40_3_6, v44, v47, v48, v52, v54, v56, v57, v58, v59, v60, v61, v62, v63, v64, v65, v66, v70, v71, v73, v74, v75, v77, v78, v79, v80, v81, v82, v83, v84, v85, v89, v90, v91, v92, v93, v94, v95, v96, v97, v98, v99, v100, v101, v102, v103, v104, v105, v106, v107, v109, v110, v111, v112, v113, v114, v115, v116, v117, v86, v87, v88, v118, v119, v120, v124, v125, v126, v127, v128, v129, v130, v131, v132, v133, v134, v135 */
        for (int64_t i = member; i < active; i += members) {
            float v26_line[12] __attribute__((aligned(64)));
            float v39_line[12] __attribute__((aligned(64)));
            float v49_line[3] __attribute__((aligned(64)));
            float v50_line[3] __attribute__((aligned(64)));
            float v47_line[3] __attribute__((aligned(64)));
            float v52_line[3] __attribute__((aligned(64)));
            float v57_line[3] __attribute__((aligned(64)));
            float v63_line[3] __attribute__((aligned(64)));
            float v75_line[3] __attribute__((aligned(64)));
            float v109_line[12] __attribute__((aligned(64)));
            float v125_line[12] __attribute__((aligned(64)));
            const float *restrict v33_at = a->v33 + row[i] * 12;
            const float *restrict v19_at = a->v19 + row[i] * 12;
            const float *restrict w1_at = a->w1;
            const float *restrict w2_s138_at = a->w2_s138;
            const float *restrict w4_at = a->w4;
            const float *restrict state_1_at = a->state_1 + row[i] * 3;
            const float *restrict d_1_at = d_1 + i * 3;
            const float *restrict d_0_at = a->d_0 + row[i] * 3;
            const float *restrict w6_at = a->w6;
            const float *restrict w7_at = a->w7;
            float *restrict v106_at = v106_rows + i * 12;
            const float *restrict d_2_at = d_2 + i * 3;
            float *restrict d_2_new = d_2_next + i * 3;
            float *restrict v117_at = a->v117 + row[i] * 12;
            float *restrict v133_at = a->v133 + row[i] * 12;
            float v35 = 0;
            float v21 = 0;
            #pragma omp simd reduction(+ : v35, v21)
            for (int64_t j = 0; j < 12; ++j) {
                const float v34 = v33_at[j] * v33_at[j];
                v35 += v34;
                const float v20 = v19_at[j] * v19_at[j];
                v21 += v20;
            }
            const float v36 = v35 * 0.08333333333333333f;
            const float v37 = v36 + 1e-05f;
            const float v38 = sn_rsqrt_f32(v37);
            const float v22 = v21 * 0.08333333333333333f;
            const float v24 = v22 + 1e-05f;
            const float v25 = sn_rsqrt_f32(v24);
            #pragma omp simd
            for (int64_t j = 0; j < 12; ++j) {
                const float v39 = v33_at[j] * v38;
                v39_line[j] = v39;
                const float v26 = v19_at[j] * v25;
                v26_line[j] = v26;
            }
            float v54 = 0;
            #pragma omp simd reduction(+ : v54)
            for (int64_t j = 0; j < 3; ++j) {
                const float v27_6_9 = v26_line[j + 6] * w1_at[j + 6];
                const float v42_s139_6_9 = v27_6_9 + w2_s138_at[j + 6];
                const float v40_6_9 = v39_line[j + 6] * w4_at[j + 6];
                const float v45 = v42_s139_6_9 + v40_6_9;
                const float v50 = sn_tanh_f32(v45);
                v50_line[j] = v50;
                const float v27_0_3 = v26_line[j] * w1_at[j];
                const float v42_s139_0_3 = v27_0_3 + w2_s138_at[j];
                const float v40_0_3 = v39_line[j] * w4_at[j];
                const float v43 = v42_s139_0_3 + v40_0_3;
                const float v49 = sn_sigmoid_f32(v43);
                v49_line[j] = v49;
                const float v51 = v49 * v50;
                const float v27_3_6 = v26_line[j + 3] * w1_at[j + 3];
                const float v42_s139_3_6 = v27_3_6 + w2_s138_at[j + 3];
                const float v40_3_6 = v39_line[j + 3] * w4_at[j + 3];
                const float v44 = v42_s139_3_6 + v40_3_6;
                const float v47 = sn_sigmoid_f32(v44);
                v47_line[j] = v47;
                const float v48 = v47 * state_1_at[j];
                const float v52 = v48 + v51;
                v52_line[j] = v52;
                v54 += v52;
            }
            const float v56 = v54 * 0.3333333333333333f;
            float v59 = 0;
            #pragma omp simd reduction(+ : v59)
            for (int64_t j = 0; j < 3; ++j) {
                const float v57 = v52_line[j] - v56;
                v57_line[j] = v57;
                const float v58 = v57 * v57;
                v59 += v58;
            }
            const float v60 = v59 * 0.3333333333333333f;
            const float v61 = v60 + 1e-05f;
            const float v62 = sn_rsqrt_f32(v61);
            float v78 = 0;
            float v80 = 0;
            #pragma omp simd reduction(+ : v78, v80)
            for (int64_t j = 0; j < 3; ++j) {
                const float v68 = d_1_at[j] + d_0_at[j];
                const float v27_9_12 = v26_line[j + 9] * w1_at[j + 9];
                const float v42_s139_9_12 = v27_9_12 + w2_s138_at[j + 9];
                const float v40_9_12 = v39_line[j + 9] * w4_at[j + 9];
                const float v46 = v42_s139_9_12 + v40_9_12;
                const float v53 = sn_sigmoid_f32(v46);
                const float v69 = v68 * v53;
                const float v63 = v57_line[j] * v62;
                v63_line[j] = v63;
                const float v64 = v63 * w6_at[j];
                const float v65 = v64 + w7_at[j];
                const float v66 = sn_tanh_f32(v65);
                const float v70 = v68 * v66;
                const float v71 = v66 * v66;
                const float v73 = 1.0f - v71;
                const float v74 = v69 * v73;
                const float v75 = v74 * w6_at[j];
                v75_line[j] = v75;
                v78 += v75;
                const float v79 = v75 * v63;
                v80 += v79;
                const float v90 = 1.0f - v53;
                const float v91 = v53 * v90;
                const float v92 = v70 * v91;
                v106_at[j + 9] = v92;
                const float v86 = v74 * v63;
                v87_part[j] += v86;
                v88_part[j] += v74;
            }
            const float v84 = v62 / 3.0f;
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v77 = v75_line[j] * 3.0f;
                const float v81 = v63_line[j] * v80;
                const float v82 = v77 - v78;
                const float v83 = v82 - v81;
                const float v85 = v84 * v83;
                const float v89 = d_2_at[j] + v85;
                const float v93 = v89 * v49_line[j];
                const float v94 = v89 * v50_line[j];
                const float v95 = v50_line[j] * v50_line[j];
                const float v96 = 1.0f - v95;
                const float v97 = v93 * v96;
                v106_at[j + 6] = v97;
                const float v98 = 1.0f - v49_line[j];
                const float v99 = v49_line[j] * v98;
                const float v100 = v94 * v99;
                v106_at[j] = v100;
                const float v101 = v89 * v47_line[j];
                d_2_new[j] = v101;
                const float v102 = v89 * state_1_at[j];
                const float v103 = 1.0f - v47_line[j];
                const float v104 = v47_line[j] * v103;
                const float v105 = v102 * v104;
                v106_at[j + 3] = v105;
            }
            float v110 = 0;
            float v112 = 0;
            float v126 = 0;
            float v128 = 0;
            #pragma omp simd reduction(+ : v110, v112, v126, v128)
            for (int64_t j = 0; j < 12; ++j) {
                const float v107 = v106_at[j] * w4_at[j];
                const float v109 = v107 * 12.0f;
                v109_line[j] = v109;
                v110 += v107;
                const float v111 = v107 * v39_line[j];
                v112 += v111;
                const float v118 = v106_at[j] * v39_line[j];
                v119_part[j] += v118;
                v120_part[j] += v106_at[j];
                const float v124 = v106_at[j] * w1_at[j];
                const float v125 = v124 * 12.0f;
                v125_line[j] = v125;
                v126 += v124;
                const float v127 = v124 * v26_line[j];
                v128 += v127;
                const float v134 = v106_at[j] * v26_line[j];
                v135_part[j] += v134;
            }
            const float v116 = v38 / 12.0f;
            const float v132 = v25 / 12.0f;
            #pragma omp simd
            for (int64_t j = 0; j < 12; ++j) {
                const float v113 = v39_line[j] * v112;
                const float v114 = v109_line[j] - v110;
                const float v115 = v114 - v113;
                const float v117 = v116 * v115;
                v117_at[j] = v117;
                const float v129 = v26_line[j] * v128;
                const float v130 = v125_line[j] - v126;
                const float v131 = v130 - v129;
                const float v133 = v132 * v131;
                v133_at[j] = v133;
            }
        }
        MEET;
        /* v123 = matmul(v117, w3)  [12] x [12, 3] */
        {
            const int64_t c0 = first_column(3, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(3, member + 1, members, SN_WIDTH * sn_lanes_f32);
            if (c1 > c0) sn_matmul_f32((sn_rows_f32){(float *)d_1_next + c0, 3, 0}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)a->v117, 12, row}, a->w3_packed + c0 * 12, active, 12, c1 - c0);
        }
        MEET;
        for (int64_t i = active; i-- > 0;) { /* sequences that end here */
            const int64_t b = a->order[index + i * shares];
            if (a->length[b] > t + 1) break;
            if (i % members != member) continue;
            memcpy(a->d_1_final + b * 3, d_1_next + i * 3, 3 * sizeof(float));
            memcpy(a->d_2_final + b * 3, d_2_next + i * 3, 3 * sizeof(float));
        }
        { float *now = d_1; d_1 = d_1_next; d_1_next = now; }
        { float *now = d_2; d_2 = d_2_next; d_2_next = now; }
        if (t % 64 == 63) { /* short sums of short sums lose fewer digits */
            for (int64_t j = 0; j < 3; ++j) { v87_sum[j] += v87_part[j]; v87_part[j] = 0; }
            for (int64_t j = 0; j < 3; ++j) { v88_sum[j] += v88_part[j]; v88_part[j] = 0; }
            for (int64_t j = 0; j < 12; ++j) { v119_sum[j] += v119_part[j]; v119_part[j] = 0; }
            for (int64_t j = 0; j < 12; ++j) { v120_sum[j] += v120_part[j]; v120_part[j] = 0; }
            for (int64_t j = 0; j < 12; ++j) { v135_sum[j] += v135_part[j]; v135_part[j] = 0; }
        }
    }
    for (int64_t j = 0; j < 3; ++j) { v87_sum[j] += v87_part[j]; v87_part[j] = 0; }
    for (int64_t j = 0; j < 3; ++j) { v88_sum[j] += v88_part[j]; v88_part[j] = 0; }
    for (int64_t j = 0; j < 12; ++j) { v119_sum[j] += v119_part[j]; v119_part[j] = 0; }
    for (int64_t j = 0; j < 12; ++j) { v120_sum[j] += v120_part[j]; v120_part[j] = 0; }
    for (int64_t j = 0; j < 12; ++j) { v135_sum[j] += v135_part[j]; v135_part[j] = 0; }
#undef MEET
}

/* Matrices are packed anew at every call: they may have changed. */
static void pack(void *data, int64_t index, int64_t count) {
    const arguments *a = (const arguments *)data;
    (void)count;
    if (index == 0) sn_pack_f32(a->w3_packed, a->w3, a->w3_stride_k, a->w3_stride_n, 12, 3, 1, SN_WIDTH);
}

typedef struct {
    const arguments *a;
    sn_barrier barrier;
} team;

static void share(void *data, int64_t index, int64_t shares) {
    run_share(((team *)data)->a, index, shares, 0, 1, 0);
}

static void member_of(void *data, int64_t index, int64_t count) {
    run_share(((team *)data)->a, 0, 1, index, count, &((team *)data)->barrier);
}

void run(const sn_pool *pool, const arguments *a) {
    for (int64_t i = 0; i < 1; ++i) pack((void *)a, i, 1);
    team everyone = {a, {0, 0}};
    if (a->together) sn_together(pool, member_of, &everyone);
    else sn_parallel(pool, a->shares, share, &everyone);
}
