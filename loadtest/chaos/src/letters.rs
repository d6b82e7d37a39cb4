//! Reads what the run needs from a letter: the recipient, and the alerts to which it links.

/// Text before the id of an alert in a link.
const LINK: &str = "alert=";

/// The address in a line such as `RCPT TO:<nurse@example.org>`.
pub fn address(line: &str) -> String {
    let inner = line.split(['<', '>']).nth(1);
    inner.unwrap_or_default().to_owned()
}

/// Ids of the alerts that the letter links to, each once.
pub fn alerts(text: &str) -> Vec<String> {
    let text = decoded(text);
    let mut ids: Vec<String> = text
        .split(LINK)
        .skip(1)
        .map(|rest| {
            rest.chars()
                .take_while(char::is_ascii_alphanumeric)
                .collect()
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Without the soft line breaks and the escaped `=` of quoted-printable text.
fn decoded(text: &str) -> String {
    text.replace("=\r\n", "").replace("=3D", "=")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_found_in_plain_and_in_quoted_text() {
        let plain = "see https://ward/#patient=ada&alert=0a1b\r\nand https://ward/#alert=2c\r\n";
        assert_eq!(alerts(plain), ["0a1b", "2c"]);
        let quoted =
            "see https://ward/#patient=3Dada&alert=3D0a=\r\n1b\r\nhttps://ward/#al=\r\nert=3D0a1b";
        assert_eq!(alerts(quoted), ["0a1b"]);
        assert_eq!(address("RCPT TO:<nurse@example.org>"), "nurse@example.org");
        assert_eq!(address("RCPT"), "");
    }
}
