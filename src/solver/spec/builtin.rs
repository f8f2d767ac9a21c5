//! The models that are part of the program: their files, by name. No I/O.

/// Name, and path and text of solver and net.
pub(super) struct Builtin {
    pub(super) name: &'static str,
    pub(super) solver: (&'static str, &'static str),
    pub(super) net: (&'static str, &'static str),
}

const LENET: (&str, &str) = (
    "models/lenet_train_test.prototxt",
    include_str!("../../../models/lenet_train_test.prototxt"),
);

pub(super) const BUILTINS: [Builtin; 3] = [
    Builtin {
        name: "lenet",
        solver: (
            "models/lenet_solver.prototxt",
            include_str!("../../../models/lenet_solver.prototxt"),
        ),
        net: LENET,
    },
    Builtin {
        name: "lenet_no_momentum",
        solver: (
            "models/lenet_no_momentum_solver.prototxt",
            include_str!("../../../models/lenet_no_momentum_solver.prototxt"),
        ),
        net: LENET,
    },
    Builtin {
        name: "cifar10_quick",
        solver: (
            "models/cifar10_quick_solver.prototxt",
            include_str!("../../../models/cifar10_quick_solver.prototxt"),
        ),
        net: (
            "models/cifar10_quick_train_test.prototxt",
            include_str!("../../../models/cifar10_quick_train_test.prototxt"),
        ),
    },
];
