#!/bin/sh
# install.sh FOLDER [uv sync's options]: an environment from uv.lock. For build stages only: nothing of what is set
# here (certificates, addresses of registries) reaches an image.
set -eu
target=$1
shift

# Certificate authorities of a company's proxy: files images/ca/*.crt of the build context.
if ls /ca/*.crt >/dev/null 2>&1; then
    cat /etc/ssl/certs/ca-certificates.crt /ca/*.crt >/tmp/ca-bundle.pem
    export SSL_CERT_FILE=/tmp/ca-bundle.pem PIP_CERT=/tmp/ca-bundle.pem
fi

# A registry that takes PyPI's place, by whichever name it was given.
index=${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-${PIP_INDEX_URL:-}}}
if [ -n "$index" ]; then
    export UV_DEFAULT_INDEX="$index" PIP_INDEX_URL="${PIP_INDEX_URL:-$index}"
fi

python=$(command -v python3)
if ! command -v uv >/dev/null; then
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        apt-get -qq update
        apt-get -qq --yes install --no-install-recommends python3-pip >/dev/null
    fi
    "$python" -m pip install --quiet --no-cache-dir --root-user-action=ignore --break-system-packages \
        --only-binary :all: --require-hashes -r "$(dirname "$0")/uv.txt"
fi

export UV_LINK_MODE=copy UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never UV_PYTHON="$python" UV_PROJECT_ENVIRONMENT="$target"
# Relocatable: the local node's image holds environments of other images at another place.
[ -x "$target/bin/python" ] || uv venv --quiet --relocatable "$target"
if [ -n "$index" ]; then
    # `uv sync` fetches from the addresses in uv.lock, whatever the index is: it finds these installed then.
    (
        for option in "$@"; do
            shift
            case $option in
                --no-install-workspace) continue ;;
                --no-install-*) option=--no-emit-${option#--no-install-} ;;
            esac
            set -- "$@" "$option"
        done
        uv export --quiet --frozen --no-emit-workspace "$@" >/tmp/requirements.txt
    )
    uv pip install --quiet --python "$target/bin/python" --no-deps --require-hashes -r /tmp/requirements.txt
fi
uv sync --quiet --frozen --no-editable --compile-bytecode "$@"
rm -f "$target/.lock" "$target/.gitignore"
