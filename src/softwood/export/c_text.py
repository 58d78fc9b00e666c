"""The parts of an exported C file that are the same for every model, as templates for `softwood.export.c`."""

from softwood.model.program import Link
from softwood.tabular.encoding.base_columns import FARTHEST_SECONDS, CalendarUnit
from softwood.tabular.encoding.features import FeatureKind

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
 * holds no categories. A label of NULL is a missing cell, and so is an empty one. */
int {name}_category_code(int column, const char *label);
"""

PREAMBLE = """\
/* Prediction of a softwood model; {stem}.h says how to call it. Compile as C99 without -ffast-math.
 *
 * A split is a sum of products in float, taken in one fixed order: eight partial sums, of which those four apart are
 * added first, then those two apart. The share of a leaf in a score is rounded so that sums of shares are exact. Where
 * the compiler fuses no multiplication with an addition (gcc -std=c99; else -ffp-contract=off), every row takes the
 * same way as in Python, to the last bit. */
#include "{stem}.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#define LARGEST_FEATURE {largest}
enum {{ N_SCORES = {n_scores}, LANES = 8, BATCH = {batch} }};

static inline float within(float value, float bound) {{
    return value > bound ? bound : value < -bound ? -bound : value;
}}
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

_WHOLE_DAYS = f"""\
    const double farthest = {FARTHEST_SECONDS!r};
    if (isnan(seconds)) return (float)seconds;
    const long long whole = (long long)(seconds > farthest ? farthest : seconds < -farthest ? -farthest : seconds);
    const long long days = whole / 86400 - (whole % 86400 < 0);
"""

CALENDAR = {
    CalendarUnit.MONTH: f"""\
/* Days of years that begin in March repeat every 146097 days, and months of 153 days every five. */
static float month_of(double seconds) {{
{_WHOLE_DAYS}    const long long day_of_era = ((days + 719468) % 146097 + 146097) % 146097;
    const long long year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    const long long day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    const long long from_march = (5 * day_of_year + 2) / 153;
    return (float)(from_march < 10 ? from_march + 3 : from_march - 9);
}}
""",
    CalendarUnit.WEEKDAY: f"""\
/* 0 is Monday; 1 January 1970 was a Thursday. */
static float weekday_of(double seconds) {{
{_WHOLE_DAYS}    return (float)(((days + 3) % 7 + 7) % 7);
}}
""",
    CalendarUnit.HOUR: f"""\
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

# What stands for $ in a feature: r is centred, and scaled unless the weights do that.
FEATURE = """\
        const float held = within(r - mean_@[f], bound_@[f]);
"""
SCALED_FEATURE = """\
        const float held = within((r - mean_@[f]) * scale_@[f], LARGEST_FEATURE);
"""

FEATURES = {
    FeatureKind.LINEAR: """\
        const float r = v;
$        x[f] = isnan(v) ? 0.0f : held;
""",
    FeatureKind.SOFT_CLIP: """\
        const float z = within((v - start_@[f]) * rate_@[f], LARGEST_FEATURE);
        const float r = z / sqrtf(1.0f + (z / 3.0f) * (z / 3.0f));
$        x[f] = isnan(v) ? 0.0f : held;
""",
    FeatureKind.RAMP: """\
        const float free = (v - start_@[f]) * rate_@[f];
        const float r = free > 1.0f ? 1.0f : free < 0.0f ? 0.0f : free;
$        x[f] = isnan(v) ? 0.0f : held;
""",
    FeatureKind.LEVEL: """\
        const float r = v == start_@[f] ? 1.0f : 0.0f;
$        x[f] = isnan(v) ? 0.0f : held;
""",
    FeatureKind.MISSING: """\
        const float r = isnan(v) ? 1.0f : 0.0f;
$        x[f] = held;
""",
}

# Four numbers at once where the compiler can, else one; code after this is written for either.
NUMBERS = """\
#if defined(__GNUC__) && !defined(ONE_AT_A_TIME)
typedef float reals __attribute__((vector_size(16)));
typedef int ints __attribute__((vector_size(16)));
static inline ints is_negative(reals v) { return v < (reals){0}; } /* -1 or 0 */
static inline reals positive_part(reals v) { return (reals)((ints)v & (v > (reals){0})); }
static inline reals magnitude(reals v) { return (reals)((ints)v & 0x7fffffff); }
#define PREFETCH(address) __builtin_prefetch(address)
#else
typedef float reals;
typedef int ints;
static inline ints is_negative(reals v) { return -(v < 0.0f); }
static inline reals positive_part(reals v) { return v > 0.0f ? v : 0.0f; }
static inline reals magnitude(reals v) { return fabsf(v); }
#define PREFETCH(address) ((void)(address))
#endif
enum { STEP = sizeof(reals) / sizeof(float) };

static inline reals load(const float *from) {
    reals v;
    memcpy(&v, from, sizeof v);
    return v;
}
"""

# Probability of the less likely side of a split.
ACTIVATIONS = {
    "smooth_step": """\
static inline reals smooth_step(reals abs_t, float half, float inverse) {
    const reals s = positive_part(half - abs_t) * inverse;
    return s * s * (3.0f - 2.0f * s);
}
""",
    "smoother_step": """\
static inline reals smoother_step(reals abs_t, float half, float inverse) {
    const reals s = positive_part(half - abs_t) * inverse;
    return s * s * s * (10.0f + s * (6.0f * s - 15.0f));
}
""",
    "logistic": """\
static inline reals logistic(reals abs_t, float half, float inverse) {
    float e[STEP];
    memcpy(e, &abs_t, sizeof abs_t);
    (void)half;
    for (int i = 0; i < (int)STEP; ++i) {
        e[i] = expf(-e[i] * inverse);
        e[i] = e[i] / (1.0f + e[i]);
    }
    return load(e);
}
""",
}

TRAVERSAL_START = """\
#if defined(__GNUC__) && !defined(ONE_AT_A_TIME)
static inline float split_value(const float *w, const float *x, int width) {
    reals near = load(w) * load(x), far = load(w + 4) * load(x + 4);
    for (int f = LANES; f < width; f += LANES) {
        near += load(w + f) * load(x + f);
        far += load(w + f + 4) * load(x + f + 4);
    }
    near += far;
    return (near[0] + near[2]) + (near[1] + near[3]);
}
#else
static float split_value(const float *w, const float *x, int width) {
    float sums[LANES];
    for (int i = 0; i < LANES; ++i) sums[i] = w[i] * x[i];
    for (int f = LANES; f < width; f += LANES) {
        for (int i = 0; i < LANES; ++i) sums[i] += w[f + i] * x[f + i];
    }
    for (int i = 0; i < 4; ++i) sums[i] += sums[i + 4];
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}
#endif

/* Nodes of one level that the row reaches, and the probabilities with which it does. */
struct reached {
    int count, node[2 * BATCH + 4];
    float probability[2 * BATCH + 4];
};
"""

TRAVERSAL = """\
/* From the last n nodes of a level to those below. Of two children the likelier one is always reached: it takes its
 * parent's place. The other is added at the end if it is. */
static void follow_{i}(const float *splits, const float *x, struct reached *level, int n, struct reached *next) {{
    int *node = level->node + level->count - n, other[BATCH + 4];
    float *probability = level->probability + level->count - n, t[BATCH + 4], minor[BATCH + 4];
    level->count -= n;
    for (int j = 0; j < n; ++j) t[j] = split_value(splits + (long)node[j] * {width}, x, {width});
    for (int j = n; j < n + 4; ++j) t[j] = probability[j] = 0.0f, node[j] = 0;
    for (int j = 0; j < n; j += STEP) {{
        ints parent, child;
        const reals value = load(t + j), arrived = load(probability + j);
        const reals part = arrived * {minor}(magnitude(value), {half}, {inverse}), rest = arrived - part;
        memcpy(&parent, node + j, sizeof parent);
        child = 2 * parent - is_negative(value);
        memcpy(next->node + j, &child, sizeof child);
        memcpy(next->probability + j, &rest, sizeof rest);
        child = 4 * parent + 1 - child;
        memcpy(other + j, &child, sizeof child);
        memcpy(minor + j, &part, sizeof part);
    }}
    next->count = n;
    for (int j = 0; j < n; ++j) {{
        next->node[next->count] = other[j];
        next->probability[next->count] = minor[j];
        next->count += minor[j] != 0.0f;
    }}
}}

static void add_leaves_{i}(const struct reached *leaves, double *sums) {{
    for (int j = 0; j < leaves->count; ++j) {{
        const float *leaf = leaves_{i} + (long)leaves->node[j] * N_SCORES;
        for (int c = 0; c < N_SCORES; ++c) {{
            sums[c] += ((double)leaves->probability[j] * (double)leaf[c] + {rounder}) - {rounder};
        }}
    }}
}}

/* Splits stand level by level, in a level tree by tree; children of node i are 2i and 2i + 1 of the next level. Nodes
 * are followed many at a time, because one by one each would wait for the one before; the deepest first, so that lists
 * stay short. */
static void add_trees_{i}(const float *x, double *scores) {{
    struct reached levels[{depth} + 1];
    double sums[N_SCORES] = {{0}};
    for (int first = 0; first < {n_trees}; first += BATCH) {{
        const int n_trees = {n_trees} - first < BATCH ? {n_trees} - first : BATCH;
        for (int j = 0; j < n_trees; ++j) {{
            levels[0].node[j] = first + j;
            levels[0].probability[j] = 1.0f;
        }}
        levels[0].count = n_trees;
        for (int level = 0; level >= 0;) {{
            const int n = levels[level].count < BATCH ? levels[level].count : BATCH;
            if (n == 0) {{
                --level;
                continue;
            }}
            const float *splits = splits_{i} + ((1L << level) - 1) * {n_trees} * {width};
            follow_{i}(splits, x, &levels[level], n, &levels[level + 1]);
            if (++level < {depth}) {{
                splits += (1L << (level - 1)) * {n_trees} * {width};
                for (int j = 0; j < levels[level].count; ++j) {{
                    const float *row = splits + (long)levels[level].node[j] * {width};
                    PREFETCH(row);
                    PREFETCH(row + 16);
                }}
            }} else {{
                add_leaves_{i}(&levels[level--], sums);
            }}
        }}
    }}
    for (int c = 0; c < N_SCORES; ++c) scores[c] += sums[c];
}}
"""

# What trees of lookups read: the entry of a column in its tables, and how far it is on the way to the next one.
CELL_OF_CODE = """\
struct cell {
    int entry, fraction;
};

static inline struct cell cell_of_code(float code, int n_codes) {
    struct cell found = {n_codes, 0};
    if (code >= 0 && code < n_codes && code == floorf(code)) found.entry = (int)code;
    return found;
}
"""

CELL_OF_NUMBER = """\
static struct cell cell_of_number(float value, const float *knots, const float *rates, int n) {{
    struct cell found = {{n, 0}};
    int low = 0, above = n; /* the last knot that is not above the value, or the first */
    float position;
    if (isnan(value)) return found;
    while (above - low > 1) {{
        const int middle = (low + above) / 2;
        if (knots[middle] <= value) low = middle;
        else above = middle;
    }}
    position = (value - knots[low]) * rates[low];
    if (position > 0.0f) found.fraction = (int)lrintf(position < {one} ? position : {one});
    found.entry = low;
    return found;
}}
"""

LOOKUP_TREES = """\
/* Sums of tables, and shares of leaves in scores, are integers: exact in any order. */
static float split_{i}(const struct cell *cells, int split) {{
    int sum = 0;
    for (int j = tables_{i}[split]; j < tables_{i}[split + 1]; ++j) {{
        const struct cell cell = cells[columns_{i}[j]];
        const short *value = values_{i} + begin_{i}[j] + cell.entry;
        sum += value[0] * ({one} - cell.fraction);
        if (cell.fraction > 0) sum += value[1] * cell.fraction;
    }}
    return (float)sum * {unit} + bias_{i}[split];
}}

static void add_lookups_{i}(const struct cell *cells, double *scores) {{
    long long sums[N_SCORES] = {{0}};
    for (int tree = 0; tree < {n_trees}; ++tree) {{
        int node[{depth} + 1] = {{0}}, n = 1; /* nodes still to visit */
        float probability[{depth} + 1] = {{1.0f}};
        while (n-- > 0) {{
            const int i = node[n];
            const float arrived = probability[n];
            if (i >= {n_splits}) {{
                const float *leaf = leaves_{i} + ((long)tree * ({n_splits} + 1) + i - {n_splits}) * N_SCORES;
                for (int c = 0; c < N_SCORES; ++c) sums[c] += lrintf(arrived * leaf[c]);
                continue;
            }}
            const float t = split_{i}(cells, tree * {n_splits} + i);
            float lanes[STEP] = {{0}};
            lanes[0] = t;
            const reals part = {minor}(magnitude(load(lanes)), {half}, {inverse});
            memcpy(lanes, &part, sizeof part);
            const float left = t < 0.0f ? lanes[0] : 1.0f - lanes[0], right = t < 0.0f ? 1.0f - lanes[0] : lanes[0];
            if (arrived * right > 0.0f) node[n] = 2 * i + 2, probability[n++] = arrived * right;
            if (arrived * left > 0.0f) node[n] = 2 * i + 1, probability[n++] = arrived * left;
        }}
    }}
    for (int c = 0; c < N_SCORES; ++c) scores[c] += (double)sums[c] * {scale};
}}
"""

LOOKUP = """\
static int find(const char *const *labels, int n, int missing, const char *label) {{
    if (label == NULL) return missing;
    for (int i = 0; i < n; ++i) {{
        if (strcmp(labels[i], label) == 0) return i;
    }}
    return *label ? -1 : missing;
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
    {memory};
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

CLASS_PROBABILITIES = {
    Link.BINARY: """\
    output[1] = 1.0 / (1.0 + exp(-scores[0]));
    output[0] = 1.0 - output[1];
""",
    Link.SOFTMAX: """\
    double largest = scores[0], total = 0.0;
    for (int c = 1; c < N_SCORES; ++c) largest = scores[c] > largest ? scores[c] : largest;
    for (int c = 0; c < N_SCORES; ++c) total += output[c] = exp(scores[c] - largest);
    for (int c = 0; c < N_SCORES; ++c) output[c] /= total;
""",
    Link.LOGISTIC: """\
    for (int c = 0; c < N_SCORES; ++c) output[c] = 1.0 / (1.0 + exp(-scores[c]));
""",
}

TARGETS = """\
    static const double target_mean[] = {{{mean}}}, target_scale[] = {{{scale}}};
    for (int c = 0; c < N_SCORES; ++c) {{
        output[c] = {value} * target_scale[c / {per_target}] + target_mean[c / {per_target}];
    }}
"""

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
