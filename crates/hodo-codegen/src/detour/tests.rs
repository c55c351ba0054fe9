use super::*;

#[test]
fn bits_of_words_are_cut_and_extended() {
    let cut = |shift, width, signed| {
        Bits {
            shift,
            width,
            signed,
        }
        .of(0x8000_0000_0000_81F3)
    };
    assert_eq!(cut(0, 8, false), 0xF3);
    assert_eq!(cut(0, 8, true), u64::MAX - 12);
    assert_eq!(cut(8, 8, false), 0x81);
    assert_eq!(cut(4, 3, false), 7);
    assert_eq!(cut(0, 64, true), 0x8000_0000_0000_81F3);
    assert_eq!(cut(63, 1, true), u64::MAX);
}

#[test]
fn patterns_fit_whole_texts() {
    for (pattern, text, fits) in [
        ("", "", true),
        ("*", "", true),
        ("a*c", "abbc", true),
        ("a*c", "abbcd", false),
        ("?[a-c]*", "xbz", true),
        ("?[!a-c]*", "xbz", false),
        ("[]x]", "]", true),
        ("a[", "a[", true),
        ("*ab*ab", "abab", true),
        ("*ab*ab", "ab", false),
    ] {
        let atoms = Atom::pattern(pattern.as_bytes());
        assert_eq!(Atom::fit(&atoms, text.as_bytes()), fits, "{pattern} {text}");
    }
}
