#compdef gputop
# zsh completion for gputop: eval "$(gputop completion zsh)"
_gputop() {
    local -a commands=(
        'live:watch this machine (what `gputop` alone does)'
        'demo:see it without a GPU  real trouble, a simulated GPU'
        'explain:say why, from a live look or a recording'
        'diff:compare two recordings, before and after a fix'
        'prove:try a cause  switch it off and on, compare the pace'
        'stacks:the stacks of stalled processes'
        'record:record to a file, for a time or around a command'
        'watch:tell of incidents without a screen; exit 3 for CI'
        'replay:replay a recording, or a stream from standard input'
        'query:ask a recording in SQL'
        'export:a recording as CSV, SQLite, Parquet or a Perfetto trace'
        'loader:how many workers a DataLoader needs, measured'
        'exporter:metrics for Prometheus, node_exporter, OpenTelemetry'
        'mark:set a marker in the live view and in recordings'
        'import:turn an Ingero trace into a recording'
        'doctor:what works here, what is missing, and the command that fixes it'
        'completion:complete commands and flags in bash, zsh or fish'
        'collect:write the stream of frames to standard output'
    )
    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
        _describe command commands
        return
    fi
    local command=live
    [[ $words[2] != -* ]] && command=$words[2]
    case $command in
        live) compadd -- -h --help -V --version --interval --gpu --no-ebpf --sudo --pid --user --host --hosts --job --reach --pods -n --namespace -1 --once --json --readonly --no-auto-stacks --alert --alert-on --ascii --no-ascii --light ;;
        demo) compadd -- -h --help --duration --plain --no-ebpf --sudo --readonly --ascii --no-ascii --light cpu-contention slow-disk too-few-workers throttled memcpy-bottleneck tiny-kernels sync-storm straggler queue-full-healthy tour ;;
        explain) compadd -- -h --help --json --plot --fail-on --last --since --from --until --fine --interval --gpu --no-ebpf --sudo ;;
        diff) compadd -- -h --help --json --last --since --from --until --fine ;;
        prove) compadd -- -h --help --cause --pairs --seconds --keep --stop --yes --others --json --undo --readonly --no-ebpf --sudo ;;
        stacks) compadd -- -h --help --native --duration --off-cpu --json --folded --speedscope -o --output ;;
        record) compadd -- -h --help -o --output --duration --max-size --max-files --keep --host --hosts --no-auto-stacks --alert --alert-on --interval --gpu --no-ebpf --sudo ;;
        watch) compadd -- -h --help --fail-on --for --stop --duration --host --alert --alert-on --interval --gpu --no-ebpf --sudo ;;
        replay) compadd -- -h --help --sample --speed --at --loop --ascii --no-ascii --light ;;
        query) compadd -- -h --help --last --since --from --until --fine --timeout --json --csv ;;
        export) compadd -- -h --help --to -o --output --beside --last --since --from --until --fine ;;
        loader) compadd -- -h --help --workers --seconds --batches --json --plot ;;
        exporter) compadd -- -h --help --listen --web-config --textfile --otlp --level --node --no-users --compat --alert --alert-on --interval --gpu --no-ebpf --sudo ;;
        mark) compadd -- -h --help ;;
        import) compadd -- -h --help -o --output ;;
        doctor) compadd -- -h --help --json --bundle -o --output --with-names ;;
        completion) compadd -- -h --help bash zsh fish ;;
        collect) compadd -- -h --help --interval --gpu --no-ebpf --sudo --summary --from --shift --lines --frames ;;
    esac
    _files
}
compdef _gputop gputop
