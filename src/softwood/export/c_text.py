"""The parts of an exported C file that are the same for every model, as templates for `softwood.export.c`."""

HEADER = """\
/* Prediction of a softwood model. Compile the source beside this header as C99, link with -lm. */
#ifndef {guard}
#define {guard}

#ifdef __cplusplus
extern "C" {{
#endif

#define {upper}_N_COLUMNS {n_columns}
#define {upper}_N_OUTPUTS {n_outputs}

/* Columns of a row; NaN is a missing cell.
{columns}
 * Outputs:
{outputs}
 * Returns 0, or, with `output` left alone, the number (from 1) of a column that holds an infinity.
 * Allocates nothing and keeps no state: any number of threads may call it at once. */
int {name}_predict(const double row[{upper}_N_COLUMNS], double output[{upper}_N_OUTPUTS]);
{lookup}
#ifdef __cplusplus
}}
#endif

#endif
"""

LOOKUP_DECLARATION = """
/* Code of a category of a column, for a row: -1 for a label (UTF-8) that training did not see, and for a column that
 * holds no categories. A label of NULL is a missing cell. */
int {name}_category_code(int column, const char *label);
"""

PREAMBLE = """\
/* Prediction of a softwood model; {stem}.h says how to call it. Compile as C99 without -ffast-math.
 *
 * A split is a sum of products in float, taken in one fixed order: eight partial sums, added as a binary tree of
 * neighbours; leaves are summed in 64-bit fixed point. Where the compiler fuses no multiplication with an addition
 * (gcc -std=c99; else -ffp-contract=off), every row takes the same way as in Python, to the last bit. */
#include "{stem}.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

enum {{ N_SCORES = {n_scores}, LANES = 8 }};
"""

AS_FLOAT = """\
static float as_float(double value) {
    return (float)(value > FLT_MAX ? FLT_MAX : value < -FLT_MAX ? -FLT_MAX : value);
}
"""

CODE_OF = """\
/* A known code, the one of missing cells, or -1. */
static int code_of(double cell, int n_levels, int missing) {
    if (isnan(cell)) return missing;
    return cell >= 0 && cell < n_levels && cell == floor(cell) ? (int)cell : -1;
}
"""

_WHOLE_DAYS = """\
    if (isnan(seconds)) return (float)seconds;
    const long long whole = (long long)(seconds > 1e17 ? 1e17 : seconds < -1e17 ? -1e17 : seconds);
    const long long days = whole / 86400 - (whole % 86400 < 0);
"""

CALENDAR = {
    "month": f"""\
/* Days of years that begin in March repeat every 146097 days, and months of 153 days every five. */
static float month_of(double seconds) {{
{_WHOLE_DAYS}    const long long day_of_era = ((days + 719468) % 146097 + 146097) % 146097;
    const long long year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    const long long day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    const long long from_march = (5 * day_of_year + 2) / 153;
    return (float)(from_march < 10 ? from_march + 3 : from_march - 9);
}}
""",
    "weekday": f"""\
/* 0 is Monday; 1 January 1970 was a Thursday. */
static float weekday_of(double seconds) {{
{_WHOLE_DAYS}    return (float)(((days + 3) % 7 + 7) % 7);
}}
""",
    "hour": f"""\
static float hour_of(double seconds) {{
{_WHOLE_DAYS}    return (float)((whole - days * 86400) / 3600);
}}
""",
}

# @ stands for the number of the encoding.
FEATURE_LOOP = """\
    for (int f = {first}; f < {end}; ++f) {{
        const float v = base[source_@[f]];
{body}    }}
"""

_STANDARDISED = """\
        const float feature = (r - mean_@[f]) * scale_@[f];
        const float held = feature > 1e6f ? 1e6f : feature < -1e6f ? -1e6f : feature;
"""

FEATURES = {
    "linear": f"""\
        const float r = v;
{_STANDARDISED}        x[f] = isnan(v) ? 0.0f : held;
""",
    "soft_clip": f"""\
        const float free = (v - start_@[f]) * rate_@[f];
        const float z = free > 1e6f ? 1e6f : free < -1e6f ? -1e6f : free;
        const float r = z / sqrtf(1.0f + (z / 3.0f) * (z / 3.0f));
{_STANDARDISED}        x[f] = isnan(v) ? 0.0f : held;
""",
    "ramp": f"""\
        const float free = (v - start_@[f]) * rate_@[f];
        const float r = free > 1.0f ? 1.0f : free < 0.0f ? 0.0f : free;
{_STANDARDISED}        x[f] = isnan(v) ? 0.0f : held;
""",
    "level": f"""\
        const float r = v == start_@[f] ? 1.0f : 0.0f;
{_STANDARDISED}        x[f] = isnan(v) ? 0.0f : held;
""",
    "missing": f"""\
        const float r = isnan(v) ? 1.0f : 0.0f;
{_STANDARDISED}        x[f] = held;
""",
}

ACTIVATIONS = {
    "smooth_step": """\
/* Probability of the less likely side of a split. */
static float smooth_step(float abs_t, float half, float inverse) {
    const float s = abs_t < half ? (half - abs_t) * inverse : 0.0f;
    return s * s * (3.0f - 2.0f * s);
}
""",
    "smoother_step": """\
/* Probability of the less likely side of a split. */
static float smoother_step(float abs_t, float half, float inverse) {
    const float s = abs_t < half ? (half - abs_t) * inverse : 0.0f;
    return s * s * s * (10.0f + s * (6.0f * s - 15.0f));
}
""",
    "logistic": """\
/* Probability of the less likely side of a split. */
static float logistic(float abs_t, float half, float inverse) {
    (void)half;
    const float e = expf(-abs_t * inverse);
    return e / (1.0f + e);
}
""",
}

TRAVERSAL_START = """\
static float split_value(const float *w, const float *x, int width) {
    float sums[LANES];
    for (int i = 0; i < LANES; ++i) sums[i] = w[i] * x[i];
    for (int f = LANES; f < width; f += LANES) {
        for (int i = 0; i < LANES; ++i) sums[i] += w[f + i] * x[f + i];
    }
    for (int n = LANES / 2; n >= 1; n /= 2) {
        for (int i = 0; i < n; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
    }
    return sums[0];
}
"""

TRAVERSAL = """\
/* Children of node i are 2i + 1 and 2i + 2. The less likely side of a split waits on the stack, if it is reached. */
static void add_trees_{i}(const float *x, double *scores) {{
    long long sums[N_SCORES] = {{0}};
    for (int tree = 0; tree < {n_trees}; ++tree) {{
        const float *splits = splits_{i} + (long)tree * {n_splits} * {width};
        const float *leaves = leaves_{i} + (long)tree * ({n_splits} + 1) * N_SCORES;
        int waiting_node[{depth}];
        float waiting_probability[{depth}];
        int n_waiting = 0, node = 0;
        float probability = 1.0f;
        for (;;) {{
            while (node < {n_splits}) {{
                const float t = split_value(splits + (long)node * {width}, x, {width});
                const float minor = probability * {minor}(fabsf(t), {half}, {inverse});
                const int left = 2 * node + 1;
                if (minor != 0.0f) {{
                    waiting_node[n_waiting] = t < 0.0f ? left : left + 1;
                    waiting_probability[n_waiting++] = minor;
                }}
                node = t < 0.0f ? left + 1 : left;
                probability -= minor;
            }}
            const float *leaf = leaves + (long)(node - {n_splits}) * N_SCORES;
            for (int c = 0; c < N_SCORES; ++c) {{
                sums[c] += (long long)((double)probability * (double)leaf[c] * {scale});
            }}
            if (n_waiting == 0) break;
            node = waiting_node[--n_waiting];
            probability = waiting_probability[n_waiting];
        }}
    }}
    for (int c = 0; c < N_SCORES; ++c) scores[c] += (double)sums[c] * (1.0 / {scale});
}}
"""

LOOKUP = """\
static int find(const char *const *labels, int n, int missing, const char *label) {{
    if (label == NULL) return missing;
    for (int i = 0; i < n; ++i) {{
        if (strcmp(labels[i], label) == 0) return i;
    }}
    return -1;
}}

int {name}_category_code(int column, const char *label) {{
    switch (column) {{
{cases}
    default: return -1;
    }}
}}
"""

PREDICT = """\
int {name}_predict(const double row[{upper}_N_COLUMNS], double output[{upper}_N_OUTPUTS]) {{
    float base[{n_base}], x[{width}];
    double scores[N_SCORES] = {{{offset}}};
    for (int j = 0; j < {n_columns}; ++j) {{
        if (isinf(row[j])) return j + 1;
    }}
    read_row(row, base);
{steps}
    for (int c = 0; c < N_SCORES; ++c) scores[c] /= {n_members};
{head}    return 0;
}}
"""

HEADS = {
    "binary": """\
    output[1] = 1.0 / (1.0 + exp(-scores[0]));
    output[0] = 1.0 - output[1];
""",
    "softmax": """\
    double largest = scores[0], total = 0.0;
    for (int c = 1; c < N_SCORES; ++c) largest = scores[c] > largest ? scores[c] : largest;
    for (int c = 0; c < N_SCORES; ++c) total += output[c] = exp(scores[c] - largest);
    for (int c = 0; c < N_SCORES; ++c) output[c] /= total;
""",
    "regression": """\
    static const double target_mean[] = {{{mean}}}, target_scale[] = {{{scale}}};
    for (int c = 0; c < N_SCORES; ++c) {{
        output[c] = {value} * target_scale[c / {per_target}] + target_mean[c / {per_target}];
    }}
""",
}

SORT_QUANTILES = """\
    /* Quantiles learned one by one may cross. */
    static const int rank[] = {{{rank}}};
    for (int begin = 0; begin < N_SCORES; begin += {n_quantiles}) {{
        double sorted[{n_quantiles}];
        for (int i = 0; i < {n_quantiles}; ++i) {{
            int place = i;
            for (; place > 0 && sorted[place - 1] > output[begin + i]; --place) sorted[place] = sorted[place - 1];
            sorted[place] = output[begin + i];
        }}
        for (int i = 0; i < {n_quantiles}; ++i) output[begin + i] = sorted[rank[i]];
    }}
"""
