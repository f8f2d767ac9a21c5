//! The path of the running program, for messages that name it.

/// The path of this program's own file, quoted for a shell. `setcap` needs it, and `which dogwild`
/// may find another build or another of our programs.
pub fn program() -> String {
    let Ok(path) = std::env::current_exe() else {
        return "$(which dogwild)".to_owned();
    };
    let path = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    if path.chars().all(plain) {
        path
    } else {
        format!("'{}'", path.replace('\'', "'\\''"))
    }
}
