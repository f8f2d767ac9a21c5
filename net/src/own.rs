//! The program that runs, for messages that tell what to do with it.

/// The path of this program's own file, as a shell takes it: what `setcap` must be given, which
/// `which dogwild` need not find (another build, another of our programs).
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
