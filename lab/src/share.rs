//! Shares, as the options of all programs take them.

/// A share as all options of all programs take it: 0.1 or 10%, from 0 to 1 (100%).
///
/// All of it (`--loss 100%`) is a legitimate experiment, as it is for a burst.
pub fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = text
        .strip_suffix('%')
        .map_or((text, 1.0), |number| (number, 100.0));
    let number = number
        .trim()
        .parse::<f64>()
        .map_err(|_| format!("`{text}` is not a share: write 0.1 or 10%"))?;
    let share = number / scale;
    if (0.0..=1.0).contains(&share) {
        Ok(share)
    } else if scale == 1.0 && (1.0..=100.0).contains(&number) {
        let part = (number * 10.0).round() / 1000.0;
        Err(format!(
            "`{text}` is more than all of it: write {number}% or {part}"
        ))
    } else {
        Err(format!("`{text}` is not between 0 and 1 (0% to 100%)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_numbers_or_per_cent() {
        assert_eq!(share("0.25"), Ok(0.25));
        assert_eq!(share("10%"), Ok(0.1));
        assert_eq!((share("1"), share("100%")), (Ok(1.0), Ok(1.0)));
        for wrong in ["", "ten", "1.1", "-1", "-10%", "101%", "NaN", "inf", "%"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
        let said = share("99").expect_err("99");
        assert!(said.contains("99% or 0.99"), "{said}");
        let said = share("2.5").expect_err("2.5");
        assert!(said.contains("2.5% or 0.025"), "{said}");
    }
}
