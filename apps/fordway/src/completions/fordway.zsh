#compdef fordway
# Completion of fordway(1) in zsh. The command itself says what may stand at the cursor; the
# program behind run and try has its own completion.
_fordway() {
    local -a said
    local kind
    integer at
    said=("${(@f)$(command "${(Q)words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    kind=$said[1]
    shift said
    case $kind in
        words)
            said=("${(@)said//:/\\:}")
            said=("${(@)said/$'\t'/:}")
            (( $#said )) && _describe fordway said
            ;;
        files)
            compset -P '--*='
            _files
            ;;
        dirs)
            compset -P '--*='
            _files -/
            ;;
        program\ *)
            (( at = ${kind#program } + 1 ))
            shift $at words
            (( CURRENT -= at ))
            _normal
            ;;
    esac
}
if [[ $funcstack[1] == _fordway ]]; then
    _fordway "$@"
else
    compdef _fordway fordway
fi
