//! The kernel's command line: words with a value (`ip=10.0.0.2/24`) and without (`dhcp`).

/// What `xl` was given as `extra` or `cmdline`.
#[derive(Clone, Copy, Debug)]
pub struct CommandLine<'a>(pub &'a str);

impl<'a> CommandLine<'a> {
    /// The value of the last word `key=value`.
    pub fn value(self, key: &str) -> Option<&'a str> {
        let values = self.words().filter_map(|word| word.split_once('='));
        values
            .filter(|&(name, _)| name == key)
            .map(|(_, value)| value)
            .last()
    }

    /// Whether the word stands there by itself.
    pub fn has(self, word: &str) -> bool {
        self.words().any(|each| each == word)
    }

    pub fn words(self) -> impl Iterator<Item = &'a str> {
        self.0.split_ascii_whitespace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whole_and_the_last_value_counts() {
        let line = CommandLine(" ip=10.0.0.2/24  gw=10.0.0.1 dhcp6 off=gso ip=10.0.0.3/24 a=b=c");
        assert_eq!(line.value("ip"), Some("10.0.0.3/24"));
        assert_eq!(line.value("a"), Some("b=c"));
        assert_eq!(line.value("i"), None);
        assert!(line.has("dhcp6") && !line.has("dhcp") && !line.has("gw"));
    }
}
