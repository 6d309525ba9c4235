#!/usr/bin/env perl
# Runs job after job: a JSON line for each. A cancelled job ends this process by SIGTERM.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use IO::Handle;
use JSON::PP;
use MIME::Base64 qw(decode_base64);
use Scalar::Util qw(blessed);
use Files;

my $json = JSON::PP->new->utf8->canonical;
$SIG{TERM} = sub { exit 143 };                              # END blocks and destructors run
open my $lines, '>&', \*STDOUT or die "standard output: $!";
open STDOUT, '>&', \*STDERR or die "standard error: $!";    # what job code prints is no line of the protocol
$lines->autoflush;
sub send_line { print {$lines} $json->encode({@_}), "\n" }

send_line(ready => JSON::PP::true);
while (my $line = <STDIN>) {
    my $job = $json->decode($line);
    my ($jid, $klass, $payload) = @{$job}{qw(jid klass payload)};
    $payload = decode_base64($payload->{'$bytes'}) if $job->{encoding} eq 'bytes';
    utf8::encode($payload) if $job->{encoding} eq 'text';
    $job->{progress} = sub { send_line(jid => $jid, progress => [@_]) };
    eval {
        my $run = $Files::KLASSES{$klass} or Files::give_up("there is no klass $klass here");
        send_line(jid => $jid, complete => $run->($payload, $job));
        1;
    } or do {
        my ($verdict, $message) = blessed $@ && $@->isa('GiveUp') ? (fail => $@->{message}) : (retry => $@);
        my $group = $job->{queue} . ($verdict eq 'fail' ? '-gave-up' : '-error');
        send_line(jid => $jid, $verdict => { group => $group, message => "$message" });
    };
}
