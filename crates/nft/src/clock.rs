//! Times of the clock as rules write them: `"2030-01-31 12:00:00"`, `"17:30"`.
//!
//! UTC throughout: the rules mean the same wherever they are read. (nft takes the time zone of
//! the process that loads them.)
use crate::prelude::*;

const DAY_SECONDS: i64 = 86_400;

/// Days since 1970-01-01 of a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last of a year.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date of a day since 1970-01-01.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days - era * 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn numbers<const N: usize>(text: &str, sign: char) -> Option<[i64; N]> {
    let mut out = [0; N];
    let mut parts = text.split(sign);
    for slot in &mut out {
        let part = parts.next()?;
        if part.is_empty() || part.len() > 4 || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *slot = part.parse().ok()?;
    }
    parts.next().is_none().then_some(out)
}

/// A date, or a date and an hour, as nanoseconds since 1970.
pub fn parse_time_ns(text: &str) -> Option<u64> {
    let (day, hour) = match text.split_once(' ') {
        Some((day, hour)) => (day, parse_hour(hour.trim())?),
        None => (text, 0),
    };
    let [year, month, day] = numbers::<3>(day, '-').or_else(|| numbers::<3>(day, '/'))?;
    if !(1970..=2200).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = days(year, month, day) * DAY_SECONDS + i64::from(hour);
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)
}

/// `HH:MM` or `HH:MM:SS` as seconds since midnight.
pub fn parse_hour(text: &str) -> Option<u32> {
    let [hour, minute, second] = numbers::<3>(text, ':').or_else(|| {
        let [hour, minute] = numbers::<2>(text, ':')?;
        Some([hour, minute, 0])
    })?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    u32::try_from(hour * 3600 + minute * 60 + second).ok()
}

/// `2030-01-31 12:00:00`.
pub fn write_time_ns(ns: u64) -> String {
    let seconds = i64::try_from(ns / 1_000_000_000).unwrap_or(0);
    let (year, month, day) = date(seconds.div_euclid(DAY_SECONDS));
    let rest = seconds.rem_euclid(DAY_SECONDS);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// `17:30`, with seconds only if there are some.
pub fn write_hour(seconds: u64) -> String {
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    if second == 0 {
        format!("{hour:02}:{minute:02}")
    } else {
        format!("{hour:02}:{minute:02}:{second:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for (text, seconds) in [
            ("1970-01-01 00:00:00", 0),
            ("2000-02-29 12:30:15", 951_827_415),
            ("2030-12-31 23:59:59", 1_924_991_999),
        ] {
            let ns = parse_time_ns(text).expect("a time");
            assert_eq!(ns, seconds * 1_000_000_000);
            assert_eq!(write_time_ns(ns), text);
        }
        assert_eq!(parse_hour("17:30"), Some(63_000));
        assert_eq!(write_hour(63_001), "17:30:01");
        for bad in ["24:00", "1", "12:60", "x", "1:2:3:4", ""] {
            assert_eq!(parse_hour(bad), None, "{bad}");
        }
    }
}
