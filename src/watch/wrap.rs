//! Lines that wrap at words, on a screen and in a picture. Pure text; no word is broken.

/// `text` with each line wrapped at words to `width` columns; what is wrapped is indented by two.
pub fn wrap(text: &str, width: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut rest = String::new();
        for word in line.split(' ') {
            let joined = rest.chars().count() + 1 + word.chars().count();
            if rest.trim().is_empty() || joined <= width {
                if !rest.is_empty() {
                    rest.push(' ');
                }
                rest.push_str(word);
            } else {
                lines.push(std::mem::replace(&mut rest, format!("  {word}")));
            }
        }
        lines.push(rest);
    }
    lines.join("\n")
}
