//! Instructions as text.

use alloc::string::String;

use iced_x86::{Decoder, DecoderOptions, FastFormatter};

/// The instruction at the start of `code` as text, in Intel's syntax.
#[must_use]
pub fn text(code: &[u8], addr: u64) -> String {
    let raw = Decoder::with_ip(64, code, addr, DecoderOptions::NONE).decode();
    if raw.is_invalid() {
        return format!(".byte 0x{:02x}", code.first().copied().unwrap_or_default());
    }
    let mut text = String::new();
    let mut formatter = FastFormatter::new();
    let options = formatter.options_mut();
    options.set_use_hex_prefix(true);
    options.set_uppercase_hex(false);
    options.set_space_after_operand_separator(true);
    options.set_rip_relative_addresses(false);
    formatter.format(&raw, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_absolute() {
        assert_eq!(
            text(&[0x48, 0x8B, 0x05, 0x10, 0, 0, 0], 0x1000),
            "mov rax, [0x1017]"
        );
        assert_eq!(text(&[0x06], 0), ".byte 0x06");
    }
}
