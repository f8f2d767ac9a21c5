//! Poseidon: the reliable path, layer by layer.
//!
//! Where every gradient must arrive, a layer's gradient (or the sufficient factors that it can be
//! rebuilt from) goes to servers or peers as soon as its backward pass ends. [`cost`] counts what
//! each scheme sends and says which one a layer takes.
//!
//! May touch: `weights` and `wire`. Source: Zhang et al., "Poseidon", 2015 (arXiv 1512.06216) and
//! 2017 (USENIX ATC, arXiv 1706.03292).

pub mod cost;
