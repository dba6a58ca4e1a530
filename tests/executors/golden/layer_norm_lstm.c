/* scan of forward
 *   carry state[0] <- v76
 *   carry state[1] <- v58
 *   v15: row[12] float32 = matmul(x, v14) {}  # layer_norm_lstm.py:65
 *   v33: row[12] float32 = matmul(state[0], v32) {}  # layer_norm_lstm.py:66
 *   v34: row[1] float32 = slice(v33) {'dim': 0, 'start': 0, 'end': 1, 'step': 1}  # layer_norm_lstm.py:65
 *   v35: row[12] float32 = sub(v33, v34) {}  # layer_norm_lstm.py:65
 *   v36: row[1] float32 = sum(v35) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v37: row[1] float32 = div(v36, v19) {}  # layer_norm_lstm.py:65
 *   v38: row[1] float32 = add(v34, v37) {}  # layer_norm_lstm.py:65
 *   v39: row[12] float32 = sub(v33, v38) {}  # layer_norm_lstm.py:65
 *   v40: row[12] float32 = mul(v39, v39) {}  # layer_norm_lstm.py:65
 *   v41: row[1] float32 = sum(v40) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v42: row[1] float32 = div(v41, v19) {}  # layer_norm_lstm.py:65
 *   v43: row[1] float32 = add(v42, v26) {}  # layer_norm_lstm.py:65
 *   v44: row[1] float32 = rsqrt(v43) {}  # layer_norm_lstm.py:65
 *   v45: row[12] float32 = mul(v39, v44) {}  # layer_norm_lstm.py:65
 *   v46: row[12] float32 = mul(v45, w4) {}  # layer_norm_lstm.py:65
 *   v16: row[1] float32 = slice(v15) {'dim': 0, 'start': 0, 'end': 1, 'step': 1}  # layer_norm_lstm.py:65
 *   v17: row[12] float32 = sub(v15, v16) {}  # layer_norm_lstm.py:65
 *   v18: row[1] float32 = sum(v17) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v20: row[1] float32 = div(v18, v19) {}  # layer_norm_lstm.py:65
 *   v21: row[1] float32 = add(v16, v20) {}  # layer_norm_lstm.py:65
 *   v22: row[12] float32 = sub(v15, v21) {}  # layer_norm_lstm.py:65
 *   v23: row[12] float32 = mul(v22, v22) {}  # layer_norm_lstm.py:65
 *   v24: row[1] float32 = sum(v23) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v25: row[1] float32 = div(v24, v19) {}  # layer_norm_lstm.py:65
 *   v27: row[1] float32 = add(v25, v26) {}  # layer_norm_lstm.py:65
 *   v28: row[1] float32 = rsqrt(v27) {}  # layer_norm_lstm.py:65
 *   v29: row[12] float32 = mul(v22, v28) {}  # layer_norm_lstm.py:65
 *   v30: row[12] float32 = mul(v29, w1) {}  # layer_norm_lstm.py:65
 *   v48_s146: row[12] float32 = add(v30, w2_s145) {}  # layer_norm_lstm.py:65
 *   v48: row[12] float32 = add(v48_s146, v46) {}  # layer_norm_lstm.py:65
 *   v49: row[3] float32 = slice(v48) {'dim': 0, 'start': 0, 'end': 3, 'step': 1}  # layer_norm_lstm.py:68
 *   v50: row[3] float32 = slice(v48) {'dim': 0, 'start': 3, 'end': 6, 'step': 1}  # layer_norm_lstm.py:68
 *   v51: row[3] float32 = slice(v48) {'dim': 0, 'start': 6, 'end': 9, 'step': 1}  # layer_norm_lstm.py:68
 *   v52: row[3] float32 = slice(v48) {'dim': 0, 'start': 9, 'end': 12, 'step': 1}  # layer_norm_lstm.py:68
 *   v53: row[3] float32 = sigmoid(v50) {}  # layer_norm_lstm.py:69
 *   v54: row[3] float32 = mul(v53, state[1]) {}  # layer_norm_lstm.py:69
 *   v55: row[3] float32 = sigmoid(v49) {}  # layer_norm_lstm.py:69
 *   v56: row[3] float32 = tanh(v51) {}  # layer_norm_lstm.py:69
 *   v57: row[3] float32 = mul(v55, v56) {}  # layer_norm_lstm.py:69
 *   v58: row[3] float32 = add(v54, v57) {}  # layer_norm_lstm.py:69
 *   v59: row[3] float32 = sigmoid(v52) {}  # layer_norm_lstm.py:70
 *   v60: row[1] float32 = slice(v58) {'dim': 0, 'start': 0, 'end': 1, 'step': 1}  # layer_norm_lstm.py:70
 *   v61: row[3] float32 = sub(v58, v60) {}  # layer_norm_lstm.py:70
 *   v62: row[1] float32 = sum(v61) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v64: row[1] float32 = div(v62, v63) {}  # layer_norm_lstm.py:70
 *   v65: row[1] float32 = add(v60, v64) {}  # layer_norm_lstm.py:70
 *   v66: row[3] float32 = sub(v58, v65) {}  # layer_norm_lstm.py:70
 *   v67: row[3] float32 = mul(v66, v66) {}  # layer_norm_lstm.py:70
 *   v68: row[1] float32 = sum(v67) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v69: row[1] float32 = div(v68, v63) {}  # layer_norm_lstm.py:70
 *   v70: row[1] float32 = add(v69, v26) {}  # layer_norm_lstm.py:70
 *   v71: row[1] float32 = rsqrt(v70) {}  # layer_norm_lstm.py:70
 *   v72: row[3] float32 = mul(v66, v71) {}  # layer_norm_lstm.py:70
 *   v73: row[3] float32 = mul(v72, w6) {}  # layer_norm_lstm.py:70
 *   v74: row[3] float32 = add(v73, w7) {}  # layer_norm_lstm.py:70
 *   v75: row[3] float32 = tanh(v74) {}  # layer_norm_lstm.py:70
 *   v76: row[3] float32 = mul(v59, v75) {}  # layer_norm_lstm.py:70
 *   out state[1], v22, v39, v76
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
    const float *w2_s145;
    const float *w4;
    const float *w6;
    const float *w7;
    const float *v14;
    int64_t v14_stride_k;
    int64_t v14_stride_n;
    int64_t v14_stride_h;
    float *v14_packed;
    const float *v32;
    int64_t v32_stride_k;
    int64_t v32_stride_n;
    int64_t v32_stride_h;
    float *v32_packed;
    const float *state_0_boot;
    float *state_0_final;
    const float *state_1_boot;
    float *state_1_final;
    float *state_1_copy0;
    float *v22;
    float *v39;
    float *v76;
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
    float *v33_rows = TAKE(float, count * 12);
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
        /* row by row: v17, v18, v20, v21, v22 */
        for (int64_t i = member; i < active; i += members) {
            const float *restrict v15_at = v15_rows + ((t - t0) * count + i) * 12;
            float *restrict v22_at = a->v22 + row[i] * 12;
            float v18 = 0;
            #pragma omp simd reduction(+ : v18)
            for (int64_t j = 0; j < 12; ++j) {
                const float v17 = v15_at[j] - v15_at[0];
                v18 += v17;
            }
            const float v20 = v18 / 12.0f;
            const float v21 = v15_at[0] + v20;
            #pragma omp simd
            for (int64_t j = 0; j < 12; ++j) {
                const float v22 = v15_at[j] - v21;
                v22_at[j] = v22;
            }
        }
        MEET;
        /* v33 = matmul(state[0], v32)  [3] x [3, 12] */
        {
            const int64_t c0 = first_column(12, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(12, member + 1, members, SN_WIDTH * sn_lanes_f32);
            if (c1 > c0) sn_matmul_f32((sn_rows_f32){(float *)v33_rows + c0, 12, 0}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)state_0, 3, 0}, a->v32_packed + c0 * 3, active, 3, c1 - c0);
        }
        MEET;
        /* row by row: v35, v36, v37, v38, v39, v40, v41, v42, v43, v44, v23, v24, v25, v27, v28, v29_0_3, v30_0_3, v48_s146_0_3, v45_0_3, v46_0_3, v49, v29_3_6, v30_3_6, v48_s146_3_6, v45_3_6, v46_3_6, v50, v29_6_9, v30_6_9, v48_s146_6_9, v45_6_9, v46_6_9, v51, v29_9_12, v30_9_12, v48_s146_9_12, v45_9_12, v46_9_12, v52, v53, v54, v55, v56, v57, v58, v59, v61, v62, v64, v65, v66, v67, v68, v69, v70, v71, v72, v73, v74, v75, v76, state[1]_copy0 */
        for (int64_t i = member; i < active; i += members) {
            float v66_line[3] __attribute__((aligned(64)));
            float *restrict v33_at = v33_rows + i * 12;
            float *restrict v22_at = a->v22 + row[i] * 12;
            const float *restrict state_1_at = state_1 + i * 3;
            float *restrict state_1_copy0_at = a->state_1_copy0 + row[i] * 3;
            float *restrict v39_at = a->v39 + row[i] * 12;
            const float *restrict w1_at = a->w1;
            const float *restrict w2_s145_at = a->w2_s145;
            const float *restrict w4_at = a->w4;
            float *restrict state_1_new = state_1_next + i * 3;
            const float *restrict w6_at = a->w6;
            const float *restrict w7_at = a->w7;
            float *restrict v76_at = a->v76 + row[i] * 3;
            float *restrict state_0_new = state_0_next + i * 3;
            float v36 = 0;
            float v24 = 0;
            #pragma omp simd reduction(+ : v36, v24)
            for (int64_t j = 0; j < 12; ++j) {
                const float v35 = v33_at[j] - v33_at[0];
                v36 += v35;
                const float v23 = v22_at[j] * v22_at[j];
                v24 += v23;
            }
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float state_1_copy0 = state_1_at[j];
                state_1_copy0_at[j] = state_1_copy0;
            }
            const float v37 = v36 / 12.0f;
            const float v38 = v33_at[0] + v37;
            float v41 = 0;
            #pragma omp simd reduction(+ : v41)
            for (int64_t j = 0; j < 12; ++j) {
                const float v39 = v33_at[j] - v38;
                v39_at[j] = v39;
                const float v40 = v39 * v39;
                v41 += v40;
            }
            const float v42 = v41 / 12.0f;
            const float v43 = v42 + 1e-05f;
            const float v44 = sn_rsqrt_f32(v43);
            const float v25 = v24 / 12.0f;
            const float v27 = v25 + 1e-05f;
            const float v28 = sn_rsqrt_f32(v27);
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v29_0_3 = v22_at[j] * v28;
                const float v30_0_3 = v29_0_3 * w1_at[j];
                const float v48_s146_0_3 = v30_0_3 + w2_s145_at[j];
                const float v45_0_3 = v39_at[j] * v44;
                const float v46_0_3 = v45_0_3 * w4_at[j];
                const float v49 = v48_s146_0_3 + v46_0_3;
                const float v29_3_6 = v22_at[j + 3] * v28;
                const float v30_3_6 = v29_3_6 * w1_at[j + 3];
                const float v48_s146_3_6 = v30_3_6 + w2_s145_at[j + 3];
                const float v45_3_6 = v39_at[j + 3] * v44;
                const float v46_3_6 = v45_3_6 * w4_at[j + 3];
                const float v50 = v48_s146_3_6 + v46_3_6;
                const float v29_6_9 = v22_at[j + 6] * v28;
                const float v30_6_9 = v29_6_9 * w1_at[j + 6];
                const float v48_s146_6_9 = v30_6_9 + w2_s145_at[j + 6];
                const float v45_6_9 = v39_at[j + 6] * v44;
                const float v46_6_9 = v45_6_9 * w4_at[j + 6];
                const float v51 = v48_s146_6_9 + v46_6_9;
                const float v53 = sn_sigmoid_f32(v50);
                const float v54 = v53 * state_1_at[j];
                const float v55 = sn_sigmoid_f32(v49);
                const float v56 = sn_tanh_f32(v51);
                const float v57 = v55 * v56;
                const float v58 = v54 + v57;
                state_1_new[j] = v58;
            }
            float v62 = 0;
            #pragma omp simd reduction(+ : v62)
            for (int64_t j = 0; j < 3; ++j) {
                const float v61 = state_1_new[j] - state_1_new[0];
                v62 += v61;
            }
            const float v64 = v62 / 3.0f;
            const float v65 = state_1_new[0] + v64;
            float v68 = 0;
            #pragma omp simd reduction(+ : v68)
            for (int64_t j = 0; j < 3; ++j) {
                const float v66 = state_1_new[j] - v65;
                v66_line[j] = v66;
                const float v67 = v66 * v66;
                v68 += v67;
            }
            const float v69 = v68 / 3.0f;
            const float v70 = v69 + 1e-05f;
            const float v71 = sn_rsqrt_f32(v70);
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v29_9_12 = v22_at[j + 9] * v28;
                const float v30_9_12 = v29_9_12 * w1_at[j + 9];
                const float v48_s146_9_12 = v30_9_12 + w2_s145_at[j + 9];
                const float v45_9_12 = v39_at[j + 9] * v44;
                const float v46_9_12 = v45_9_12 * w4_at[j + 9];
                const float v52 = v48_s146_9_12 + v46_9_12;
                const float v59 = sn_sigmoid_f32(v52);
                const float v72 = v66_line[j] * v71;
                const float v73 = v72 * w6_at[j];
                const float v74 = v73 + w7_at[j];
                const float v75 = sn_tanh_f32(v74);
                const float v76 = v59 * v75;
                v76_at[j] = v76;
                state_0_new[j] = v76;
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
    if (index == 1) sn_pack_f32(a->v32_packed, a->v32, a->v32_stride_k, a->v32_stride_n, 3, 12, 1, SN_WIDTH);
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
 *   carry d_1 <- v130
 *   carry d_2 <- v109
 *   v77: row[3] float32 = add(d_1, d_0) {}  # layer_norm_lstm.py:70
 *   v40: row[12] float32 = mul(v39, v39) {}  # layer_norm_lstm.py:65
 *   v41: row[1] float32 = sum(v40) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v42: row[1] float32 = div(v41, v19) {}  # layer_norm_lstm.py:65
 *   v43: row[1] float32 = add(v42, v26) {}  # layer_norm_lstm.py:65
 *   v44: row[1] float32 = rsqrt(v43) {}  # layer_norm_lstm.py:65
 *   v45: row[12] float32 = mul(v39, v44) {}  # layer_norm_lstm.py:65
 *   v46: row[12] float32 = mul(v45, w4) {}  # layer_norm_lstm.py:65
 *   v23: row[12] float32 = mul(v22, v22) {}  # layer_norm_lstm.py:65
 *   v24: row[1] float32 = sum(v23) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v25: row[1] float32 = div(v24, v19) {}  # layer_norm_lstm.py:65
 *   v27: row[1] float32 = add(v25, v26) {}  # layer_norm_lstm.py:65
 *   v28: row[1] float32 = rsqrt(v27) {}  # layer_norm_lstm.py:65
 *   v29: row[12] float32 = mul(v22, v28) {}  # layer_norm_lstm.py:65
 *   v30: row[12] float32 = mul(v29, w1) {}  # layer_norm_lstm.py:65
 *   v48_s146: row[12] float32 = add(v30, w2_s145) {}  # layer_norm_lstm.py:65
 *   v48: row[12] float32 = add(v48_s146, v46) {}  # layer_norm_lstm.py:65
 *   v52: row[3] float32 = slice(v48) {'dim': 0, 'start': 9, 'end': 12, 'step': 1}  # layer_norm_lstm.py:68
 *   v59: row[3] float32 = sigmoid(v52) {}  # layer_norm_lstm.py:70
 *   v78: row[3] float32 = mul(v77, v59) {}  # layer_norm_lstm.py:70
 *   v51: row[3] float32 = slice(v48) {'dim': 0, 'start': 6, 'end': 9, 'step': 1}  # layer_norm_lstm.py:68
 *   v56: row[3] float32 = tanh(v51) {}  # layer_norm_lstm.py:69
 *   v49: row[3] float32 = slice(v48) {'dim': 0, 'start': 0, 'end': 3, 'step': 1}  # layer_norm_lstm.py:68
 *   v55: row[3] float32 = sigmoid(v49) {}  # layer_norm_lstm.py:69
 *   v57: row[3] float32 = mul(v55, v56) {}  # layer_norm_lstm.py:69
 *   v50: row[3] float32 = slice(v48) {'dim': 0, 'start': 3, 'end': 6, 'step': 1}  # layer_norm_lstm.py:68
 *   v53: row[3] float32 = sigmoid(v50) {}  # layer_norm_lstm.py:69
 *   v54: row[3] float32 = mul(v53, state[1]) {}  # layer_norm_lstm.py:69
 *   v58: row[3] float32 = add(v54, v57) {}  # layer_norm_lstm.py:69
 *   v60: row[1] float32 = slice(v58) {'dim': 0, 'start': 0, 'end': 1, 'step': 1}  # layer_norm_lstm.py:70
 *   v61: row[3] float32 = sub(v58, v60) {}  # layer_norm_lstm.py:70
 *   v62: row[1] float32 = sum(v61) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v64: row[1] float32 = div(v62, v63) {}  # layer_norm_lstm.py:70
 *   v65: row[1] float32 = add(v60, v64) {}  # layer_norm_lstm.py:70
 *   v66: row[3] float32 = sub(v58, v65) {}  # layer_norm_lstm.py:70
 *   v67: row[3] float32 = mul(v66, v66) {}  # layer_norm_lstm.py:70
 *   v68: row[1] float32 = sum(v67) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v69: row[1] float32 = div(v68, v63) {}  # layer_norm_lstm.py:70
 *   v70: row[1] float32 = add(v69, v26) {}  # layer_norm_lstm.py:70
 *   v71: row[1] float32 = rsqrt(v70) {}  # layer_norm_lstm.py:70
 *   v72: row[3] float32 = mul(v66, v71) {}  # layer_norm_lstm.py:70
 *   v73: row[3] float32 = mul(v72, w6) {}  # layer_norm_lstm.py:70
 *   v74: row[3] float32 = add(v73, w7) {}  # layer_norm_lstm.py:70
 *   v75: row[3] float32 = tanh(v74) {}  # layer_norm_lstm.py:70
 *   v79: row[3] float32 = mul(v77, v75) {}  # layer_norm_lstm.py:70
 *   v80: row[3] float32 = mul(v75, v75) {}  # layer_norm_lstm.py:70
 *   v82: row[3] float32 = sub(v81, v80) {}  # layer_norm_lstm.py:70
 *   v83: row[3] float32 = mul(v78, v82) {}  # layer_norm_lstm.py:70
 *   v84: row[3] float32 = mul(v83, w6) {}  # layer_norm_lstm.py:70
 *   v85: row[3] float32 = mul(v84, v63) {}  # layer_norm_lstm.py:70
 *   v86: row[1] float32 = sum(v84) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v87: row[3] float32 = mul(v84, v72) {}  # layer_norm_lstm.py:70
 *   v88: row[1] float32 = sum(v87) {'dims': (0,)}  # layer_norm_lstm.py:70
 *   v89: row[3] float32 = mul(v72, v88) {}  # layer_norm_lstm.py:70
 *   v90: row[3] float32 = sub(v85, v86) {}  # layer_norm_lstm.py:70
 *   v91: row[3] float32 = sub(v90, v89) {}  # layer_norm_lstm.py:70
 *   v92: row[1] float32 = div(v71, v63) {}  # layer_norm_lstm.py:70
 *   v93: row[3] float32 = mul(v92, v91) {}  # layer_norm_lstm.py:70
 *   v97: row[3] float32 = add(d_2, v93) {}  # layer_norm_lstm.py:70
 *   v98: row[3] float32 = sub(v81, v59) {}  # layer_norm_lstm.py:70
 *   v99: row[3] float32 = mul(v59, v98) {}  # layer_norm_lstm.py:70
 *   v100: row[3] float32 = mul(v79, v99) {}  # layer_norm_lstm.py:70
 *   v101: row[3] float32 = mul(v97, v55) {}  # layer_norm_lstm.py:69
 *   v102: row[3] float32 = mul(v97, v56) {}  # layer_norm_lstm.py:69
 *   v103: row[3] float32 = mul(v56, v56) {}  # layer_norm_lstm.py:69
 *   v104: row[3] float32 = sub(v81, v103) {}  # layer_norm_lstm.py:69
 *   v105: row[3] float32 = mul(v101, v104) {}  # layer_norm_lstm.py:69
 *   v106: row[3] float32 = sub(v81, v55) {}  # layer_norm_lstm.py:69
 *   v107: row[3] float32 = mul(v55, v106) {}  # layer_norm_lstm.py:69
 *   v108: row[3] float32 = mul(v102, v107) {}  # layer_norm_lstm.py:69
 *   v109: row[3] float32 = mul(v97, v53) {}  # layer_norm_lstm.py:69
 *   v110: row[3] float32 = mul(v97, state[1]) {}  # layer_norm_lstm.py:69
 *   v111: row[3] float32 = sub(v81, v53) {}  # layer_norm_lstm.py:69
 *   v112: row[3] float32 = mul(v53, v111) {}  # layer_norm_lstm.py:69
 *   v113: row[3] float32 = mul(v110, v112) {}  # layer_norm_lstm.py:69
 *   v114: row[12] float32 = cat(v108, v113, v105, v100) {'dim': 0}  # layer_norm_lstm.py:68
 *   v115: row[12] float32 = mul(v114, w4) {}  # layer_norm_lstm.py:65
 *   v116: row[12] float32 = mul(v115, v19) {}  # layer_norm_lstm.py:65
 *   v117: row[1] float32 = sum(v115) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v118: row[12] float32 = mul(v115, v45) {}  # layer_norm_lstm.py:65
 *   v119: row[1] float32 = sum(v118) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v120: row[12] float32 = mul(v45, v119) {}  # layer_norm_lstm.py:65
 *   v121: row[12] float32 = sub(v116, v117) {}  # layer_norm_lstm.py:65
 *   v122: row[12] float32 = sub(v121, v120) {}  # layer_norm_lstm.py:65
 *   v123: row[1] float32 = div(v44, v19) {}  # layer_norm_lstm.py:65
 *   v124: row[12] float32 = mul(v123, v122) {}  # layer_norm_lstm.py:65
 *   v130: row[3] float32 = matmul(v124, w3) {}  # layer_norm_lstm.py:66
 *   v94: row[3] float32 = mul(v83, v72) {}  # layer_norm_lstm.py:70
 *   v95: sum[3] float32 = sum_rows(v94) {}  # layer_norm_lstm.py:70
 *   v96: sum[3] float32 = sum_rows(v83) {}  # layer_norm_lstm.py:70
 *   v125: row[12] float32 = mul(v114, v45) {}  # layer_norm_lstm.py:65
 *   v126: sum[12] float32 = sum_rows(v125) {}  # layer_norm_lstm.py:65
 *   v127: sum[12] float32 = sum_rows(v114) {}  # layer_norm_lstm.py:65
 *   v131: row[12] float32 = mul(v114, w1) {}  # layer_norm_lstm.py:65
 *   v132: row[12] float32 = mul(v131, v19) {}  # layer_norm_lstm.py:65
 *   v133: row[1] float32 = sum(v131) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v134: row[12] float32 = mul(v131, v29) {}  # layer_norm_lstm.py:65
 *   v135: row[1] float32 = sum(v134) {'dims': (0,)}  # layer_norm_lstm.py:65
 *   v136: row[12] float32 = mul(v29, v135) {}  # layer_norm_lstm.py:65
 *   v137: row[12] float32 = sub(v132, v133) {}  # layer_norm_lstm.py:65
 *   v138: row[12] float32 = sub(v137, v136) {}  # layer_norm_lstm.py:65
 *   v139: row[1] float32 = div(v28, v19) {}  # layer_norm_lstm.py:65
 *   v140: row[12] float32 = mul(v139, v138) {}  # layer_norm_lstm.py:65
 *   v141: row[12] float32 = mul(v114, v29) {}  # layer_norm_lstm.py:65
 *   v142: sum[12] float32 = sum_rows(v141) {}  # layer_norm_lstm.py:65
 *   out v95, v96, v124, v126, v127, v140, v142
 */
typedef struct {
    int64_t sequences, shares, steps, stride; /* row of sequence b at step t: start[b] + t * stride */
    int64_t chunk; /* steps at a time */
    int64_t together; /* 1: all threads on one share */
    const int64_t *start, *length, *order; /* order: longest first */
    char *space; /* workspace, space_bytes for each share */
    int64_t space_bytes;
    const float *d_0;
    const float *v39;
    const float *v22;
    const float *state_1;
    const float *w1;
    const float *w2_s145;
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
    float *v124;
    float *v140;
    float *v95;
    float *v96;
    float *v126;
    float *v127;
    float *v142;
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
    float *v114_rows = TAKE(float, count * 12);
#undef TAKE
    float v95_part[3], *v95_sum = a->v95 + (index * members + member) * 3;
    memset(v95_part, 0, sizeof v95_part);
    memset(v95_sum, 0, sizeof v95_part);
    float v96_part[3], *v96_sum = a->v96 + (index * members + member) * 3;
    memset(v96_part, 0, sizeof v96_part);
    memset(v96_sum, 0, sizeof v96_part);
    float v126_part[12], *v126_sum = a->v126 + (index * members + member) * 12;
    memset(v126_part, 0, sizeof v126_part);
    memset(v126_sum, 0, sizeof v126_part);
    float v127_part[12], *v127_sum = a->v127 + (index * members + member) * 12;
    memset(v127_part, 0, sizeof v127_part);
    memset(v127_sum, 0, sizeof v127_part);
    float v142_part[12], *v142_sum = a->v142 + (index * members + member) * 12;
    memset(v142_part, 0, sizeof v142_part);
    memset(v142_sum, 0, sizeof v142_part);
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
        /* row by row: v77, v40, v41, v42, v43, v44, v45, v23, v24, v25, v27, v28, v29, v30_9_12, v48_s146_9_12, v46_9_12, v52, v59, v78, v30_6_9, v48_s146_6_9, v46_6_9, v51, v56, v30_0_3, v48_s146_0_3, v46_0_3, v49, v55, v57, v30_3_6, v48_s146_3_6, v46_3_6, v50, v53, v54, v58, v61, v62, v64, v65, v66, v67, v68, v69, v70, v71, v72, v73, v74, v75, v79, v80, v82, v83, v84, v85, v86, v87, v88, v89, v90, v91, v92, v93, v97, v98, v99, v100, v101, v102, v103, v104, v105, v106, v107, v108, v109, v110, v111, v112, v113, v114, v115, v116, v117, v118, v119, v120, v121, v122, v123, v124, v94, v95, v96, v125, v126, v127, v131, v132, v133, v134, v135, v136, v137, v138, v139, v140, v141, v142 */
        for (int64_t i = member; i < active; i += members) {
            float v29_line[12] __attribute__((aligned(64)));
            float v45_line[12] __attribute__((aligned(64)));
            float v55_line[3] __attribute__((aligned(64)));
            float v56_line[3] __attribute__((aligned(64)));
            float v53_line[3] __attribute__((aligned(64)));
            float v58_line[3] __attribute__((aligned(64)));
            float v66_line[3] __attribute__((aligned(64)));
            float v72_line[3] __attribute__((aligned(64)));
            float v84_line[3] __attribute__((aligned(64)));
            float v116_line[12] __attribute__((aligned(64)));
            float v132_line[12] __attribute__((aligned(64)));
            const float *restrict v39_at = a->v39 + row[i] * 12;
            const float *restrict v22_at = a->v22 + row[i] * 12;
            const float *restrict w1_at = a->w1;
            const float *restrict w2_s145_at = a->w2_s145;
            const float *restrict w4_at = a->w4;
            const float *restrict state_1_at = a->state_1 + row[i] * 3;
            const float *restrict d_1_at = d_1 + i * 3;
            const float *restrict d_0_at = a->d_0 + row[i] * 3;
            const float *restrict w6_at = a->w6;
            const float *restrict w7_at = a->w7;
            float *restrict v114_at = v114_rows + i * 12;
            const float *restrict d_2_at = d_2 + i * 3;
            float *restrict d_2_new = d_2_next + i * 3;
            float *restrict v124_at = a->v124 + row[i] * 12;
            float *restrict v140_at = a->v140 + row[i] * 12;
            float v41 = 0;
            float v24 = 0;
            #pragma omp simd reduction(+ : v41, v24)
            for (int64_t j = 0; j < 12; ++j) {
                const float v40 = v39_at[j] * v39_at[j];
                v41 += v40;
                const float v23 = v22_at[j] * v22_at[j];
                v24 += v23;
            }
            const float v42 = v41 / 12.0f;
            const float v43 = v42 + 1e-05f;
            const float v44 = sn_rsqrt_f32(v43);
            const float v25 = v24 / 12.0f;
            const float v27 = v25 + 1e-05f;
            const float v28 = sn_rsqrt_f32(v27);
            #pragma omp simd
            for (int64_t j = 0; j < 12; ++j) {
                const float v45 = v39_at[j] * v44;
                v45_line[j] = v45;
                const float v29 = v22_at[j] * v28;
                v29_line[j] = v29;
            }
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v30_6_9 = v29_line[j + 6] * w1_at[j + 6];
                const float v48_s146_6_9 = v30_6_9 + w2_s145_at[j + 6];
                const float v46_6_9 = v45_line[j + 6] * w4_at[j + 6];
                const float v51 = v48_s146_6_9 + v46_6_9;
                const float v56 = sn_tanh_f32(v51);
                v56_line[j] = v56;
                const float v30_0_3 = v29_line[j] * w1_at[j];
                const float v48_s146_0_3 = v30_0_3 + w2_s145_at[j];
                const float v46_0_3 = v45_line[j] * w4_at[j];
                const float v49 = v48_s146_0_3 + v46_0_3;
                const float v55 = sn_sigmoid_f32(v49);
                v55_line[j] = v55;
                const float v57 = v55 * v56;
                const float v30_3_6 = v29_line[j + 3] * w1_at[j + 3];
                const float v48_s146_3_6 = v30_3_6 + w2_s145_at[j + 3];
                const float v46_3_6 = v45_line[j + 3] * w4_at[j + 3];
                const float v50 = v48_s146_3_6 + v46_3_6;
                const float v53 = sn_sigmoid_f32(v50);
                v53_line[j] = v53;
                const float v54 = v53 * state_1_at[j];
                const float v58 = v54 + v57;
                v58_line[j] = v58;
            }
            float v62 = 0;
            #pragma omp simd reduction(+ : v62)
            for (int64_t j = 0; j < 3; ++j) {
                const float v61 = v58_line[j] - v58_line[0];
                v62 += v61;
            }
            const float v64 = v62 / 3.0f;
            const float v65 = v58_line[0] + v64;
            float v68 = 0;
            #pragma omp simd reduction(+ : v68)
            for (int64_t j = 0; j < 3; ++j) {
                const float v66 = v58_line[j] - v65;
                v66_line[j] = v66;
                const float v67 = v66 * v66;
                v68 += v67;
            }
            const float v69 = v68 / 3.0f;
            const float v70 = v69 + 1e-05f;
            const float v71 = sn_rsqrt_f32(v70);
            float v86 = 0;
            float v88 = 0;
            #pragma omp simd reduction(+ : v86, v88)
            for (int64_t j = 0; j < 3; ++j) {
                const float v77 = d_1_at[j] + d_0_at[j];
                const float v30_9_12 = v29_line[j + 9] * w1_at[j + 9];
                const float v48_s146_9_12 = v30_9_12 + w2_s145_at[j + 9];
                const float v46_9_12 = v45_line[j + 9] * w4_at[j + 9];
                const float v52 = v48_s146_9_12 + v46_9_12;
                const float v59 = sn_sigmoid_f32(v52);
                const float v78 = v77 * v59;
                const float v72 = v66_line[j] * v71;
                v72_line[j] = v72;
                const float v73 = v72 * w6_at[j];
                const float v74 = v73 + w7_at[j];
                const float v75 = sn_tanh_f32(v74);
                const float v79 = v77 * v75;
                const float v80 = v75 * v75;
                const float v82 = 1.0f - v80;
                const float v83 = v78 * v82;
                const float v84 = v83 * w6_at[j];
                v84_line[j] = v84;
                v86 += v84;
                const float v87 = v84 * v72;
                v88 += v87;
                const float v98 = 1.0f - v59;
                const float v99 = v59 * v98;
                const float v100 = v79 * v99;
                v114_at[j + 9] = v100;
                const float v94 = v83 * v72;
                v95_part[j] += v94;
                v96_part[j] += v83;
            }
            const float v92 = v71 / 3.0f;
            #pragma omp simd
            for (int64_t j = 0; j < 3; ++j) {
                const float v85 = v84_line[j] * 3.0f;
                const float v89 = v72_line[j] * v88;
                const float v90 = v85 - v86;
                const float v91 = v90 - v89;
                const float v93 = v92 * v91;
                const float v97 = d_2_at[j] + v93;
                const float v101 = v97 * v55_line[j];
                const float v102 = v97 * v56_line[j];
                const float v103 = v56_line[j] * v56_line[j];
                const float v104 = 1.0f - v103;
                const float v105 = v101 * v104;
                v114_at[j + 6] = v105;
                const float v106 = 1.0f - v55_line[j];
                const float v107 = v55_line[j] * v106;
                const float v108 = v102 * v107;
                v114_at[j] = v108;
                const float v109 = v97 * v53_line[j];
                d_2_new[j] = v109;
                const float v110 = v97 * state_1_at[j];
                const float v111 = 1.0f - v53_line[j];
                const float v112 = v53_line[j] * v111;
                const float v113 = v110 * v112;
                v114_at[j + 3] = v113;
            }
            float v117 = 0;
            float v119 = 0;
            float v133 = 0;
            float v135 = 0;
            #pragma omp simd reduction(+ : v117, v119, v133, v135)
            for (int64_t j = 0; j < 12; ++j) {
                const float v115 = v114_at[j] * w4_at[j];
                const float v116 = v115 * 12.0f;
                v116_line[j] = v116;
                v117 += v115;
                const float v118 = v115 * v45_line[j];
                v119 += v118;
                const float v125 = v114_at[j] * v45_line[j];
                v126_part[j] += v125;
                v127_part[j] += v114_at[j];
                const float v131 = v114_at[j] * w1_at[j];
                const float v132 = v131 * 12.0f;
                v132_line[j] = v132;
                v133 += v131;
                const float v134 = v131 * v29_line[j];
                v135 += v134;
                const float v141 = v114_at[j] * v29_line[j];
                v142_part[j] += v141;
            }
            const float v123 = v44 / 12.0f;
            const float v139 = v28 / 12.0f;
            #pragma omp simd
            for (int64_t j = 0; j < 12; ++j) {
                const float v120 = v45_line[j] * v119;
                const float v121 = v116_line[j] - v117;
                const float v122 = v121 - v120;
                const float v124 = v123 * v122;
                v124_at[j] = v124;
                const float v136 = v29_line[j] * v135;
                const float v137 = v132_line[j] - v133;
                const float v138 = v137 - v136;
                const float v140 = v139 * v138;
                v140_at[j] = v140;
            }
        }
        MEET;
        /* v130 = matmul(v124, w3)  [12] x [12, 3] */
        {
            const int64_t c0 = first_column(3, member, members, SN_WIDTH * sn_lanes_f32), c1 = first_column(3, member + 1, members, SN_WIDTH * sn_lanes_f32);
            if (c1 > c0) sn_matmul_f32((sn_rows_f32){(float *)d_1_next + c0, 3, 0}, (sn_rows_f32){0, 0, 0}, (sn_rows_f32){(float *)a->v124, 12, row}, a->w3_packed + c0 * 12, active, 12, c1 - c0);
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
            for (int64_t j = 0; j < 3; ++j) { v95_sum[j] += v95_part[j]; v95_part[j] = 0; }
            for (int64_t j = 0; j < 3; ++j) { v96_sum[j] += v96_part[j]; v96_part[j] = 0; }
            for (int64_t j = 0; j < 12; ++j) { v126_sum[j] += v126_part[j]; v126_part[j] = 0; }
            for (int64_t j = 0; j < 12; ++j) { v127_sum[j] += v127_part[j]; v127_part[j] = 0; }
            for (int64_t j = 0; j < 12; ++j) { v142_sum[j] += v142_part[j]; v142_part[j] = 0; }
        }
    }
    for (int64_t j = 0; j < 3; ++j) { v95_sum[j] += v95_part[j]; v95_part[j] = 0; }
    for (int64_t j = 0; j < 3; ++j) { v96_sum[j] += v96_part[j]; v96_part[j] = 0; }
    for (int64_t j = 0; j < 12; ++j) { v126_sum[j] += v126_part[j]; v126_part[j] = 0; }
    for (int64_t j = 0; j < 12; ++j) { v127_sum[j] += v127_part[j]; v127_part[j] = 0; }
    for (int64_t j = 0; j < 12; ++j) { v142_sum[j] += v142_part[j]; v142_part[j] = 0; }
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
