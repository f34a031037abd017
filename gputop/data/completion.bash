# bash completion for gputop: eval "$(gputop completion bash)"
_gputop() {
    local word=${COMP_WORDS[COMP_CWORD]} command=live words
    [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}
    case $command in
        live) words="-h --help -V --version --interval --gpu --no-ebpf --sudo --pid --user --host --hosts --job --reach --pods -n --namespace -1 --once --json --readonly --no-auto-stacks --alert --alert-on --ascii --no-ascii --light" ;;
        demo) words="-h --help --duration --plain --no-ebpf --sudo --readonly --ascii --no-ascii --light cpu-contention slow-disk too-few-workers throttled memcpy-bottleneck tiny-kernels sync-storm straggler queue-full-healthy tour" ;;
        explain) words="-h --help --json --plot --fail-on --last --since --from --until --fine --interval --gpu --no-ebpf --sudo" ;;
        diff) words="-h --help --json --last --since --from --until --fine" ;;
        prove) words="-h --help --cause --pairs --seconds --keep --stop --yes --others --json --undo --readonly --no-ebpf --sudo" ;;
        stacks) words="-h --help --native --duration --off-cpu --json --folded --speedscope -o --output" ;;
        record) words="-h --help -o --output --duration --max-size --max-files --keep --host --hosts --no-auto-stacks --alert --alert-on --interval --gpu --no-ebpf --sudo" ;;
        watch) words="-h --help --fail-on --for --stop --duration --host --alert --alert-on --interval --gpu --no-ebpf --sudo" ;;
        replay) words="-h --help --sample --speed --at --loop --ascii --no-ascii --light" ;;
        query) words="-h --help --last --since --from --until --fine --timeout --json --csv" ;;
        export) words="-h --help --to -o --output --beside --last --since --from --until --fine" ;;
        loader) words="-h --help --workers --seconds --batches --json --plot" ;;
        exporter) words="-h --help --listen --web-config --textfile --otlp --level --node --no-users --compat --alert --alert-on --interval --gpu --no-ebpf --sudo" ;;
        mark) words="-h --help" ;;
        import) words="-h --help -o --output" ;;
        doctor) words="-h --help --json --bundle -o --output --with-names" ;;
        completion) words="-h --help bash zsh fish" ;;
        collect) words="-h --help --interval --gpu --no-ebpf --sudo --summary --from --shift --lines --frames" ;;
    esac
    [[ $COMP_CWORD -eq 1 ]] && words+=" live demo explain diff prove stacks record watch replay query export loader exporter mark import doctor completion collect"
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _gputop gputop
