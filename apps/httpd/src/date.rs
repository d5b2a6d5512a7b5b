//! HTTP dates (RFC 9110 section 5.6.7): written in the one form that is allowed, read in it too.
//! The two obsolete forms are not read; what asks with them is answered as if it had not asked.

/// Length of a date: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) const DATE_BYTES: usize = 29;
pub(crate) type Date = [u8; DATE_BYTES];

const WEEKDAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
/// Seconds before the year 10000, which a date cannot name.
const SECONDS_END: u64 = 253_402_300_800;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_DAYS: u64 = 719_468;

/// `seconds` since 1970 in the proleptic Gregorian calendar, UTC.
pub(crate) fn write(seconds: u64) -> Date {
    let seconds = seconds.min(SECONDS_END - 1);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, in eras of 400 years: the leap day is a year's last.
    let shifted = days + EPOCH_DAYS;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);

    let mut date = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    date[..3].copy_from_slice(WEEKDAYS[(days % 7) as usize]);
    date[8..11].copy_from_slice(MONTHS[month as usize]);
    for (at, value) in [
        (5, day),
        (12, year / 100),
        (14, year % 100),
        (17, second / 3600),
        (20, second / 60 % 60),
        (23, second % 60),
    ] {
        date[at] = b'0' + (value / 10) as u8;
        date[at + 1] = b'0' + (value % 10) as u8;
    }
    date
}

/// Seconds since 1970 of a date in the preferred form.
pub(crate) fn read(text: &[u8]) -> Option<u64> {
    let date: &Date = text.try_into().ok()?;
    let number = |at: usize, digits: usize| {
        date[at..at + digits].iter().try_fold(0u64, |sum, digit| {
            digit
                .is_ascii_digit()
                .then(|| sum * 10 + u64::from(digit - b'0'))
        })
    };
    let month = MONTHS.iter().position(|name| date[8..11] == name[..])? as u64;
    let (day, year) = (number(5, 2)?, number(12, 4)?);
    let (hour, minute, second) = (number(17, 2)?, number(20, 2)?, number(23, 2)?);
    if year < 1970 || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let year = year - u64::from(month < 2);
    let (era, year_of_era) = (year / 400, year % 400);
    let march_month = (month + 10) % 12;
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - EPOCH_DAYS;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second.min(59);
    // Names of days, separators and days that a month has not.
    (write(seconds)[..17] == date[..17] && date[25..] == *b" GMT").then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_the_calendar() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (SECONDS_END - 1, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(core::str::from_utf8(&write(seconds)), Ok(text));
            assert_eq!(read(text.as_bytes()), Some(seconds), "{text}");
        }
        assert_eq!(write(u64::MAX), write(SECONDS_END - 1));
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "Sun, 06 Nov 1994 08:49:37 GM",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Thu, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
            "Wed, 01 Jan 1969 00:00:00 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
        ] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }
}
