"""Figures that the paper gives, typed in from its tables; they stand beside ours in the report and nowhere else.

Source: Hazimeh, Ponomareva, Mol, Tan, Mazumder, "The Tree Ensemble Layer: Differentiability meets Conditional
Computation", ICML 2020. Values are (mean, standard error).
"""

from __future__ import annotations

SOURCE = "Hazimeh et al., The Tree Ensemble Layer, ICML 2020"
Figure = tuple[float, float]

# Appendix D: samples, features and classes of the tables.
TABLES: dict[str, tuple[int, int, int]] = {
    "ann-thyroid": (7200, 21, 3),
    "breast-cancer-wisconsin": (569, 30, 2),
    "car-evaluation": (1728, 21, 4),
    "churn": (5000, 20, 2),
    "crx": (690, 15, 2),
    "dermatology": (366, 34, 6),
    "diabetes": (768, 8, 2),
    "dna": (3186, 180, 3),
    "ecoli": (327, 7, 5),
    "flare": (1066, 10, 2),
    "heart-c": (303, 13, 2),
    "hypothyroid": (3163, 25, 2),
    "nursery": (12958, 8, 4),
    "optdigits": (5620, 64, 10),
    "pima": (768, 8, 2),
    "satimage": (6435, 36, 6),
    "sleep": (105908, 13, 5),
    "solar-flare_2": (1066, 12, 6),
    "spambase": (4601, 57, 2),
    "texture": (5500, 40, 11),
    "twonorm": (7400, 20, 2),
    "vehicle": (846, 18, 4),
    "yeast": (1479, 8, 9),
}

# Table 2, "Test AUC on 23 PMLB datasets", 15 repetitions.
AUC_LEARNERS = ("tel", "xgboost", "logistic_regression", "cart")
AUC: dict[str, tuple[Figure, Figure, Figure, Figure]] = {
    "ann-thyroid": ((0.996, 0.0), (1.0, 0.0), (0.92, 0.002), (0.997, 0.0)),
    "breast-cancer-wisconsin": ((0.995, 0.001), (0.992, 0.001), (0.991, 0.001), (0.929, 0.004)),
    "car-evaluation": ((1.0, 0.0), (1.0, 0.0), (0.985, 0.001), (0.981, 0.001)),
    "churn": ((0.916, 0.004), (0.92, 0.004), (0.814, 0.003), (0.885, 0.004)),
    "crx": ((0.911, 0.005), (0.933, 0.004), (0.916, 0.005), (0.905, 0.005)),
    "dermatology": ((0.998, 0.001), (0.998, 0.001), (0.998, 0.001), (0.962, 0.005)),
    "diabetes": ((0.831, 0.006), (0.82, 0.006), (0.824, 0.008), (0.774, 0.008)),
    "dna": ((0.993, 0.0), (0.994, 0.0), (0.991, 0.0), (0.964, 0.001)),
    "ecoli": ((0.97, 0.003), (0.962, 0.003), (0.972, 0.003), (0.902, 0.007)),
    "flare": ((0.732, 0.009), (0.738, 0.01), (0.736, 0.009), (0.717, 0.01)),
    "heart-c": ((0.903, 0.006), (0.893, 0.008), (0.908, 0.005), (0.829, 0.012)),
    "hypothyroid": ((0.971, 0.003), (0.987, 0.002), (0.93, 0.005), (0.926, 0.011)),
    "nursery": ((1.0, 0.0), (1.0, 0.0), (0.916, 0.001), (0.996, 0.0)),
    "optdigits": ((1.0, 0.0), (1.0, 0.0), (0.998, 0.0), (0.958, 0.001)),
    "pima": ((0.831, 0.008), (0.825, 0.006), (0.832, 0.008), (0.758, 0.011)),
    "satimage": ((0.99, 0.0), (0.99, 0.0), (0.955, 0.001), (0.949, 0.001)),
    "sleep": ((0.925, 0.0), (0.927, 0.0), (0.889, 0.0), (0.876, 0.001)),
    "solar-flare_2": ((0.925, 0.002), (0.924, 0.002), (0.92, 0.002), (0.907, 0.002)),
    "spambase": ((0.986, 0.001), (0.989, 0.001), (0.972, 0.001), (0.926, 0.002)),
    "texture": ((1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (0.974, 0.001)),
    "twonorm": ((0.998, 0.0), (0.997, 0.0), (0.998, 0.0), (0.865, 0.002)),
    "vehicle": ((0.953, 0.003), (0.931, 0.002), (0.941, 0.002), (0.871, 0.004)),
    "yeast": ((0.861, 0.004), (0.859, 0.004), (0.852, 0.004), (0.779, 0.005)),
}
AUC_AGAINST_XGBOOST = (9, 6, 8)  # wins, ties, losses of TEL

# Table 1, smooth-step and logistic, 5 initialisations. The nine sets on which the two match are left out of the printed
# table; they stand in comments of its source.
ACTIVATION_AUC: dict[str, tuple[Figure, Figure]] = {
    "ann-thyroid": ((0.997, 0.0001), (0.996, 0.0006)),
    "breast-cancer-wisconsin": ((0.992, 0.0015), (0.994, 0.0002)),
    "car-evaluation": ((1.0, 0.0002), (1.0, 0.0)),
    "churn": ((0.897, 0.0014), (0.898, 0.0014)),
    "crx": ((0.916, 0.0025), (0.929, 0.0021)),
    "dermatology": ((0.999, 0.0), (0.999, 0.0001)),
    "diabetes": ((0.832, 0.0009), (0.816, 0.0021)),
    "dna": ((0.993, 0.0004), (0.994, 0.0)),
    "ecoli": ((0.97, 0.0004), (0.952, 0.0038)),
    "flare": ((0.78, 0.0027), (0.784, 0.0018)),
    "heart-c": ((0.936, 0.002), (0.927, 0.0036)),
    "hypothyroid": ((0.979, 0.0012), (0.979, 0.0007)),
    "nursery": ((0.999, 0.0001), (0.999, 0.0002)),
    "optdigits": ((1.0, 0.0001), (1.0, 0.0)),
    "pima": ((0.828, 0.0005), (0.82, 0.0003)),
    "satimage": ((0.988, 0.0002), (0.987, 0.0002)),
    "sleep": ((0.922, 0.0001), (0.922, 0.0002)),
    "solar-flare_2": ((0.926, 0.0002), (0.927, 0.0007)),
    "spambase": ((0.983, 0.0003), (0.983, 0.0003)),
    "texture": ((1.0, 0.0), (1.0, 0.0)),
    "twonorm": ((0.998, 0.0), (0.998, 0.0)),
    "vehicle": ((0.956, 0.0015), (0.965, 0.0007)),
    "yeast": ((0.876, 0.0014), (0.86, 0.0026)),
}

ACTIVATION_COUNTS = (7, 9, 7)  # wins, ties, losses of smooth-step

# Figure 2, section 2: "the number of reachable leaves rapidly converges to 1 during training" for gamma <= 1.
REACHABLE_LEAVES = "converges to 1"

# Figure 3, section 4.1.
SPEEDUP = "over 10x speed-up at depth 10"

# Figure 4, section 4.2: trees and, at about equal parameters per tree, the ratio of parameters.
COMPACTNESS = {"pima": "TEL peaks at 5 trees, XGBoost needs over 100: more than 20x fewer parameters"}

# Table 3: accuracy, loss and number of parameters, 5 initialisations.
IMAGES: dict[str, dict[str, tuple[Figure, Figure, int]]] = {
    "cifar10": {
        "dense": ((0.7278, 0.0047), (1.673, 0.170), 7_548_362),
        "tel": ((0.7296, 0.0109), (1.202, 0.011), 926_465),
    },
    "mnist": {
        "dense": ((0.9926, 0.0002), (0.03620, 0.00121), 5_830_538),
        "tel": ((0.9930, 0.00009), (0.03379, 0.00093), 699_585),
    },
    "fashion-mnist": {
        "dense": ((0.9299, 0.0012), (0.6930, 0.0291), 5_567_882),
        "tel": ((0.9297, 0.0012), (0.3247, 0.0045), 699_585),
    },
}
