//! Results of a job: its summary, its logs, its weights.

use std::path::Path;

use serde_json::Value;

/// A JSON file.
#[track_caller]
pub(crate) fn json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// `summary.json` of the job with its results in `out`.
#[track_caller]
pub(crate) fn summary(out: &Path) -> Value {
    json(&out.join("summary.json"))
}

/// A number of a summary.
#[track_caller]
pub(crate) fn number(value: &Value) -> f64 {
    let number = value.as_f64();
    number.unwrap_or_else(|| panic!("not a number: {value}"))
}

/// All logs in `out`, each after its name.
pub(crate) fn logs(out: &Path) -> String {
    let entries = std::fs::read_dir(out).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let logs = paths.filter(|path| path.extension().is_some_and(|ext| ext == "log"));
    let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    logs.map(|path| format!("--- {}\n{}", path.display(), text(&path)))
        .collect()
}

/// The tensors of a safetensors file: what is behind the header, whose notes have any order.
#[track_caller]
pub(crate) fn tensors(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (len, _) = bytes.split_first_chunk().expect("a header");
    let header = u64::from_le_bytes(*len) as usize;
    bytes.split_off(8 + header)
}
