//! What is in `deploy/`: checked against Kubernetes' own schema and by systemd, where these are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dogwild_lab::skip::skip;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("deploy")
        .join(name)
}

/// What a program says, if it is there.
fn said(command: &mut Command) -> Option<(bool, String)> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let [out, log] = [output.stdout, output.stderr];
    let text = [out, log].map(|text| String::from_utf8_lossy(&text).into_owned());
    Some((output.status.success(), text.concat()))
}

#[test]
fn the_manifests_fit_the_schema_of_kubernetes() {
    let program = std::env::var("KUBERNETES_VALIDATE").unwrap_or("kubernetes-validate".into());
    let check = |path: &Path| said(Command::new(&program).arg("--strict").arg(path));
    let manifest = file("kubernetes.yaml");
    let Some((good, told)) = check(&manifest) else {
        return skip(&format!(
            "{program} is not there: pip install kubernetes-validate, or name it in KUBERNETES_VALIDATE"
        ));
    };
    assert!(good, "{told}");
    // It is a check: a field that is none is found.
    let text = std::fs::read_to_string(&manifest).expect("a file");
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = folder.path().join("wrong.yaml");
    std::fs::write(&wrong, text.replace("completionMode:", "completionMod:")).expect("written");
    let (good, told) = check(&wrong).expect("it is there");
    assert!(!good && told.contains("completionMod"), "{told}");
}

/// Numbers that have to be the same are.
#[test]
fn the_manifest_has_one_number_of_nodes() {
    let text = std::fs::read_to_string(file("kubernetes.yaml")).expect("a file");
    let value = |key: &str| {
        let mut lines = text.lines().skip_while(|line| !line.contains(key));
        let line = lines.next().expect("a key");
        let number = |line: &str| -> String { line.chars().filter(char::is_ascii_digit).collect() };
        match number(line).as_str() {
            "" => number(lines.next().unwrap_or_default()),
            found => found.to_owned(),
        }
    };
    assert_eq!(value("completions:"), value("name: WORLD_SIZE"));
    assert_eq!(value("completions:"), value("parallelism:"));
}

#[test]
fn the_unit_is_one_for_systemd() {
    let folder = tempfile::tempdir().expect("a folder");
    // It looks for the program, which need not be installed.
    let text = std::fs::read_to_string(file("dogwild-node.service")).expect("a unit");
    let unit = folder.path().join("dogwild-node.service");
    let text = text.replace("/usr/bin/dogwild", "/bin/true");
    let complaints = |text: &str| -> Option<Vec<String>> {
        std::fs::write(&unit, text).expect("written");
        let mut verify = Command::new("systemd-analyze");
        let (_, told) = said(verify.args(["verify", "--man=no"]).arg(&unit))?;
        let ours = told.lines().filter(|line| line.contains("dogwild-node"));
        Some(ours.map(str::to_owned).collect())
    };
    let Some(told) = complaints(&text) else {
        return skip("systemd-analyze is not there (Debian: systemd)");
    };
    assert!(told.is_empty(), "{}", told.join("\n"));
    let wrong = complaints(&text.replace("Restart=", "Restrat=")).expect("it is there");
    assert!(
        wrong.concat().contains("Restrat"),
        "it is no check: {wrong:?}"
    );
}
