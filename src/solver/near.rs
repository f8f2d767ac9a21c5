//! The nearest known name to one that is unknown, for messages.

/// The one of `known` that `name` was probably meant to be.
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    // A third of the letters may be wrong, case aside; what differs more is another name.
    let limit = (name.chars().count() / 3).max(1);
    let name = name.to_lowercase();
    known
        .into_iter()
        .map(|known| {
            let distance = strsim::damerau_levenshtein(&name, &known.to_lowercase());
            (distance, known)
        })
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// ` (did you mean x?)`, or nothing.
pub fn hint<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    nearest(name, known).map_or(String::new(), |known| format!(" (did you mean `{known}`?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let layers = ["Convolution", "Pooling", "ReLU", "LRN"];
        assert_eq!(nearest("Convolutoin", layers), Some("Convolution"));
        assert_eq!(nearest("Relu", layers), Some("ReLU"));
        assert_eq!(nearest("Poling", layers), Some("Pooling"));
        assert_eq!(nearest("Wishful", layers), None);
        assert_eq!(nearest("", layers), None);
        assert_eq!(
            hint("minst", ["digits", "mnist"]),
            " (did you mean `mnist`?)"
        );
    }
}
