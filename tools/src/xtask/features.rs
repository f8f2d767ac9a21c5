//! Commands that check the workspace's crates one by one: without features, and with each alone.
//!
//! Touches nothing but its arguments. What features there are cargo says, so a new one is checked
//! without a line here.

use crate::metadata::Metadata;

/// Of each package: itself without its default features, then with each feature alone. Alone, as
/// nothing else of the workspace is built with it and lends it features of their dependencies.
pub(crate) fn commands(workspace: &Metadata) -> Vec<String> {
    let mut packages: Vec<_> = workspace.packages.iter().collect();
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    let of = |name: &str, more: &str| {
        format!("cargo clippy --package {name} --no-default-features{more} -- -D warnings")
    };
    packages
        .into_iter()
        .flat_map(|package| {
            let features = package.features.keys().filter(|name| *name != "default");
            let alone = features.map(|name| of(&package.name, &format!(" --features {name}")));
            std::iter::once(of(&package.name, "")).chain(alone)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn checked(commands: &[String], package: &str, features: &str) -> bool {
        let words = format!("--package {package} --no-default-features {features}");
        commands.iter().any(|command| command.contains(&words))
    }

    #[test]
    fn each_feature_is_checked_alone() {
        let workspace = r#"{"packages": [
            {"name": "b", "version": "0.1.0", "features": {"default": ["x"], "x": [], "y": ["x"]}},
            {"name": "a", "version": "0.1.0"}
        ]}"#;
        let workspace: Metadata = serde_json::from_str(workspace).expect("metadata");
        let found: Vec<_> = commands(&workspace)
            .iter()
            .filter_map(|command| command.split("--package ").nth(1)?.split(" -- ").next())
            .map(str::to_owned)
            .collect();
        let expected = [
            "a --no-default-features",
            "b --no-default-features",
            "b --no-default-features --features x",
            "b --no-default-features --features y",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn this_workspaces_features_are_found() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let workspace = Metadata::of_workspace(&manifest).expect("cargo metadata");
        let commands = commands(&workspace);
        assert!(checked(&commands, "dogwild-net", "-- -D warnings"));
        assert!(checked(&commands, "dogwild", "--features cuda"));
        assert!(!checked(&commands, "dogwild", "--features default"));
    }
}
