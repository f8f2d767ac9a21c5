//! What the programs say to `--version`.

/// What a program is built with besides what every one has.
const FEATURES: [(&str, bool); 6] = [
    ("program", true),
    ("cuda", cfg!(feature = "cuda")),
    ("data-get", cfg!(feature = "data-get")),
    ("metrics", cfg!(feature = "metrics")),
    ("pages", cfg!(feature = "pages")),
    ("top", cfg!(feature = "top")),
];

/// The version, the commit that the program is built from (empty: outside git), and the features
/// of this library.
pub fn text(commit: &str) -> &'static str {
    let built = FEATURES.iter().filter(|(_, built)| *built);
    let names: Vec<&str> = built.map(|(name, _)| *name).collect();
    dogwild_lab::version::text(env!("CARGO_PKG_VERSION"), commit, &names)
}
